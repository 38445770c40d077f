"""Writes the nccl.h methods of Library in pynccl/_C.pyi from nccl_functions.inc.

Run it after a change of the list: python -m tools.stub && make format
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABI = ROOT / "csrc" / "abi"
STUB = ROOT / "pynccl" / "_C.pyi"
BEGIN = "    # From csrc/abi/nccl_functions.inc by tools/stub.py:\n"
END = "    # End of that.\n"

STRUCTS = {
    "ncclCollConfig_t",
    "ncclConfig_t",
    "ncclEncryptionConfig_t",
    "ncclSimInfo_t",
    "ncclUniqueId",
    "ncclWaitSignalDesc_t",
}


def python_type(c_type: str, *, returned: bool = False) -> str:
    """The Python type of a value of a C type, as a parameter or as a result."""
    name = c_type.removeprefix("const ").strip()
    if name == "char*":
        return "str | None" if returned else "str"
    if name == "ncclUniqueId":
        return "UniqueId" if returned else "UniqueId | bytes"
    if name in STRUCTS:
        return name
    if c_type.endswith("*") or name.startswith("void"):
        return "int" if returned else "int | None"
    return "int"


def method(result: str, name: str, parameters: list[tuple[str, list[str]]]) -> str:
    """One method of the stub."""
    taken, returned = ["self"], []
    for kind, (first, *rest) in parameters:
        if kind == "IN":
            taken.append(f"{rest[0]}: {python_type(first)}")
        elif kind == "ARRAY":
            taken.append(f"{rest[0]}: Sequence[{python_type(first)}] | None")
        elif kind == "STRUCT":
            taken.append(f"{rest[0]}: {python_type(first)} | None")
        elif kind == "INOUT":
            taken.append(f"{rest[0]}: {python_type(first)}")
            returned.append(python_type(first, returned=True))
        elif kind == "OUT":
            returned.append(python_type(first, returned=True))
        elif kind == "OUTS":
            returned.append(f"list[{python_type(first, returned=True)}]")
        elif kind == "BUFFER":
            returned.append("bytes")
        elif kind == "STRINGS":
            returned.append("list[str]")
    if result == "const char*":
        gives = "str | None"
    elif not returned:
        gives = "None"
    else:
        gives = returned[0] if len(returned) == 1 else f"tuple[{', '.join(returned)}]"
    return f"    def {name}({', '.join(taken)}) -> {gives}: ...\n"


def methods() -> str:
    """All methods, in the order of the list."""
    lines = []
    for line in (ABI / "nccl_functions.inc").read_text().splitlines():
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
