"""Completes the stub of the extension module: csrc/python/_C.pyi becomes pynccl/_C.pyi.

The build runs it. What follows from the lists in csrc/abi takes the place of comments "Generated":
the nccl.h methods of Library, the collectives of Communicator, enums, constants, and the fields of
structs and of Config.

    python tools/stub.py pynccl/_C.pyi
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CSRC = Path(__file__).parents[1] / "csrc"
ABI = CSRC / "abi"

STUB = (CSRC / "python" / "_C.pyi").read_text()
STRUCTS = set(re.findall(r"^class (nccl\w+):", STUB, re.MULTILINE))


def python_type(c_type: str, *, returned: bool = False) -> str:
    """Return the Python type for a C type, as a parameter or as a result."""
    name = c_type.removeprefix("const ").strip()
    name = f"{name}_t" if f"{name}_t" in STRUCTS else name
    if name == "char*":
        return "str | None" if returned else "str"
    if name == "ncclUniqueId":
        return "UniqueId" if returned else "UniqueId | bytes"
    if name in STRUCTS:
        return name
    if c_type.endswith("*") or name.startswith("void"):
        return "int" if returned else "int | None"
    return "int"


def _parameter(kind: str, arguments: list[str]) -> tuple[str | None, str | None]:
    """Return what a C parameter adds to the parameters and to the results of the method."""
    first, *rest = arguments
    taken = returned = None
    if kind in {"IN", "FILLED"}:
        taken = f"{rest[0]}: {python_type(first)}"
    elif kind == "ARRAY":
        taken = f"{rest[0]}: Sequence[{python_type(first)}] | None"
    elif kind == "STRUCT":
        taken = f"{rest[0]}: {python_type(first)} | None"
    elif kind == "INOUT":
        taken = f"{rest[0]}: {python_type(first)}"
        returned = python_type(first, returned=True)
    elif kind == "OUT":
        returned = python_type(first, returned=True)
    elif kind == "OUTS":
        returned = f"list[{python_type(first, returned=True)}]"
    else:
        returned = {"BUFFER": "bytes", "STRINGS": "list[str]"}[kind]
    return taken, returned


def _result(result: str, returned: list[str]) -> str:
    if result == "const char*":
        return "str | None"
    if result not in {"ncclResult_t", "void"}:
        return python_type(result, returned=True)
    if len(returned) > 1:
        return f"tuple[{', '.join(returned)}]"
    return returned[0] if returned else "None"


def method(result: str, name: str, parameters: list[tuple[str, list[str]]]) -> str:
    """Return one method of the stub."""
    both = [_parameter(kind, arguments) for kind, arguments in parameters]
    taken = ", ".join(["self", *(each for each, _ in both if each)])
    returned = _result(result, [each for _, each in both if each])
    return f"    def {name}({taken}) -> {returned}: ...\n"


def methods() -> str:
    """Return all methods, in the order of the list."""
    lines = []
    files = ("nccl_functions.inc", "nccl_device_functions.inc")
    for line in "".join((ABI / file).read_text() for file in files).splitlines():
        if found := re.match(r"FUNCTION\(\d+, ([^,]+), (\w+)(.*)\)$", line):
            parameters = [
                (kind, [part.strip() for part in arguments.split(",")])
                for kind, arguments in re.findall(r"([A-Z]+)\(([^()]*)\)", found[3])
            ]
            lines.append(method(found[1], found[2], parameters))
    return "".join(lines)


def _collectives() -> str:
    """Return the methods of Communicator in csrc/comm/operations.inc that take a tensor."""
    lines = []
    rows = (CSRC / "comm" / "operations.inc").read_text()
    for name, rank, reduces, takes_out in re.findall(
        r"^OPERATION\(\w+, (\w+), ([^,]+), (\w+), (\w+),", rows, re.MULTILINE
    ):
        taken = ["self", "tensor: _Tensor | None" if name == "scatter" else "tensor: _Tensor"]
        taken += [f"{rank[1:-1]}: SupportsIndex"] if rank != "nullptr" else []
        taken += ["op: _Op | None = None"] if reduces == "true" else []
        taken += ["*"]
        if takes_out == "true":
            taken += ["out: _Tensor" if name == "all_to_all" else "out: _Tensor | None = None"]
        taken += ["stream: _Stream | None = None", "count: SupportsIndex | None = None"]
        taken += ["dtype: object = None"]
        taken += ["config: CollConfig | None = None"] if takes_out == "true" else []
        lines.append(f"    def {name}({', '.join(taken)}) -> None: ...\n")
    return "".join(lines)


def _fields(file: str) -> list[list[str]]:
    """Return since, type, name and, for some files, attribute of each field of a list."""
    found = re.findall(r"^FIELD\((.*)\)$", (ABI / file).read_text(), re.MULTILINE)
    return [line.split(", ") for line in found]


def _raw_field(c_type: str, name: str) -> str:
    if c_type == "NcclGinSupport":
        return f"    @property\n    def {name}(self) -> tuple[bool, ...]: ...\n"
    known = {"bool": "bool", "const char*": "str | None"}
    return f"    {name}: {known.get(c_type, 'int')}\n"


def _setting(c_type: str, attribute: str) -> str:
    python = "str" if c_type == "const char*" else "int"
    return f"    {attribute}: {python} | None = None\n"


def _constants() -> str:
    names = re.findall(r"^CONSTANT\(\d+, (\w+),", (ABI / "constants.inc").read_text(), re.MULTILINE)
    return "".join(f"{name}: int\n" for name in names)


def _enum(name: str) -> str:
    """Return the enumerators of an enum, without those that count the others."""
    text = (ABI / "nccl_types.h").read_text()
    body = text.partition(f"enum {name} : unsigned {{")[2].partition("}")[0].partition("ncclNum")[0]
    return "".join(f"    {one.strip()}\n" for one in body.split(",") if one.strip())


# The members that StructClass in csrc/python/raw/bind_structs.cpp adds to every struct.
_STRUCT = """\
    def __init__(self) -> None: ...
    def address(self) -> int: ...
"""
_VERSIONED = f"{_STRUCT}    size: int\n    magic: int\n    version: int\n"
_PARTS = {
    "Config": "".join(_setting(field[1], field[3]) for field in _fields("config_fields.inc")),
    "collectives": _collectives(),
    "constants": _constants(),
    "functions": methods(),
    "struct": _STRUCT,
    "versioned-struct": _VERSIONED,
}


def _generated(name: str) -> str:
    if name.endswith(".inc"):
        return "".join(_raw_field(c_type, field) for _, c_type, field, *_ in _fields(name))
    return _PARTS[name] if name in _PARTS else _enum(name)


def completed() -> str:
    """Return the whole stub."""
    marks = re.compile(r"(:?) *(?:\.\.\.  )?# Generated: (\S+)\n")
    return marks.sub(lambda mark: (":\n" if mark[1] else "") + _generated(mark[2]), STUB)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(completed())
