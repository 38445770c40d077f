"""Generates the nccl.h methods of Library in pynccl/_C.pyi from nccl_functions.inc.

Run it after changing the list: python -m tools.stub && make format
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABI = ROOT / "csrc" / "abi"
STUB = ROOT / "pynccl" / "_C.pyi"
BEGIN = "    # From csrc/abi/nccl_functions.inc by tools/stub.py:\n"
END = "    # End of the generated methods.\n"

# The Python names of structs that C names without _t.
RENAMED = {
    name: f"{name}_t"
    for name in (
        "ncclDevComm",
        "ncclGinBarrierHandle",
        "ncclLLA2AHandle",
        "ncclLsaBarrierHandle",
        "ncclMultimemHandle",
        "ncclTeam",
    )
}
STRUCTS = {
    *RENAMED.values(),
    "ncclCommProperties_t",
    "ncclDevCommRequirements_t",
    "ncclDevResourceRequirements_t",
    "ncclCollConfig_t",
    "ncclConfig_t",
    "ncclEncryptionConfig_t",
    "ncclSimInfo_t",
    "ncclUniqueId",
    "ncclWaitSignalDesc_t",
}


def python_type(c_type: str, *, returned: bool = False) -> str:
    """Return the Python type for a C type, as a parameter or as a result."""
    name = c_type.removeprefix("const ").strip()
    name = RENAMED.get(name, name)
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
    taken = ["self", *(each for each, _ in both if each)]
    returned = [each for _, each in both if each]
    return f"    def {name}({', '.join(taken)}) -> {_result(result, returned)}: ...\n"


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


def main() -> None:
    """Rewrite the part of the stub between the markers."""
    text = STUB.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    STUB.write_text(before + BEGIN + methods() + END + after)


if __name__ == "__main__":
    main()
