"""Compares our list with the exports of a real libnccl.so.2, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.abi.declarations import device_functions as device_list
from tests.abi.declarations import header_version, without_comments
from tests.abi.names import differences, expected_functions
from tests.abi.report import Report

# Exports that are not declared in any header of the wheel.
UNDECLARED = {
    "ncclResetDebugInitInternal": "NCCL calls it internally instead of the deprecated function",
    "pncclResetDebugInitInternal": "its profiling name",
    **{
        f"{prefix}ncclGin{kind}CreateRequirement": "no header declares its types"
        for prefix in ("", "p")
        for kind in ("InboxA2A", "Outbox")
    },
    "__bss_start": "defined by the linker",
    "_edata": "defined by the linker",
    "_end": "defined by the linker",
}


def exported(library: Path) -> set[str]:
    """Return the names of the functions and data that a shared library exports."""
    with library.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        if not isinstance(table, SymbolTableSection):
            raise ValueError(f"{library} has no dynamic symbol table")
        return {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
            and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")
            and symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
        }


def device_functions(include: Path) -> set[str]:
    """Return the names in the headers of NCCL's device API, most of which are for kernels only."""
    headers = [*include.glob("nccl_device*.h"), *include.glob("nccl_device/**/*.h")]
    texts = [without_comments(path.read_text(errors="replace")) for path in headers]
    names = {name for text in texts for name in re.findall(r"\bp?(nccl\w+)\s*\(", text)}
    return names | {f"p{name}" for name in names}


def check_symbols(report: Report, title: str, library: Path, header: Path) -> None:
    """Check that our functions are exported, and that all other exports are known."""
    version = header_version(header.read_text())
    expected = expected_functions(version)
    expected |= {function.name for function in device_list() if function.since <= version}
    expected |= {f"p{name}" for name in expected}
    symbols = exported(library)
    known = expected | device_functions(header.parent) | UNDECLARED.keys()
    problems = differences(expected, symbols & (expected | (symbols - known)), library.name)
    report.check(f"{title}: exports of {library.name}", len(symbols), "symbols", problems)
