"""Generates the parts of pynccl/_C.pyi that follow from the lists in csrc/abi.

These are the nccl.h methods of Library, and the fields of the structs and of Config.

Run it after changing a list: python -m tools.stub
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABI = ROOT / "csrc" / "abi"
STUB = ROOT / "pynccl" / "_C.pyi"
BEGIN = "    # From csrc/abi/nccl_functions.inc by tools/stub.py:\n"
END = "    # End of the generated methods.\n"

FIELDS = {
    "ncclConfig_t": "config_fields.inc",
    "ncclCollConfig_t": "coll_config_fields.inc",
    "ncclDevCommRequirements_t": "device_requirements_fields.inc",
    "ncclCommProperties_t": "comm_properties_fields.inc",
}
_WIDTH = 101  # of a line, with its end

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
    """Return one method of the stub, formatted."""
    both = [_parameter(kind, arguments) for kind, arguments in parameters]
    taken = ["self", *(each for each, _ in both if each)]
    end = f") -> {_result(result, [each for _, each in both if each])}: ...\n"
    begin, joined = f"    def {name}(", ", ".join(taken)
    if len(begin + joined + end) <= _WIDTH:
        return begin + joined + end
    if len(joined) + 8 < _WIDTH:
        return f"{begin}\n        {joined}\n    {end}"
    return begin + "\n" + "".join(f"        {each},\n" for each in taken) + "    " + end


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


def _between(text: str, begin: str, end: str, content: str) -> str:
    """Replace what stands between the first begin and the next end."""
    start = text.index(begin) + len(begin)
    return text[:start] + content + text[text.index(end, start) :]


def generated(text: str) -> str:
    """Return a stub with its generated parts replaced.

    Args:
        text: the stub.
    """
    text = _between(text, BEGIN, END, methods())
    for name, file in FIELDS.items():
        start = text.index(f"class {name}:\n")
        content = "".join(_raw_field(c_type, field) for _, c_type, field, *_ in _fields(file))
        text = text[:start] + _between(text[start:], "    version: int\n", "\nclass ", content)
    settings = "".join(_setting(field[1], field[3]) for field in _fields("config_fields.inc"))
    return _between(text, "class Config:\n", "    check: ", settings)


def main() -> None:
    """Rewrite the generated parts of the stub."""
    STUB.write_text(generated(STUB.read_text()))


if __name__ == "__main__":
    main()
