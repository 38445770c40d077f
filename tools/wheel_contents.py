"""Checks what a wheel and a source distribution of rawnccl contain.

python -m tools.wheel_contents dist/*.whl
"""

from __future__ import annotations

import email
import io
import re
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

__all__ = ["LARGEST", "main", "problems", "sdist_problems"]

ROOT = Path(__file__).parents[1]
LARGEST = 3_000_000  # bytes of a wheel
_SYSTEM = re.compile(r"(ld-linux-.*|lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+))\.so\.\d+")
# The functions that they export.
_OF_EXTENSION = r"PyInit__C(_bindings)?|pynccl_torch_(malloc|free)"
_OF_HOSTNCCL = r"(p?nccl|host)[A-Z]\w*"
_LICENCES = ("LICENSE", "LICENSE-THIRD-PARTY")
# Anything else in a wheel is a mistake.
_EXPECTED = re.compile(
    r"pynccl/([\w/]+\.pyi?|py\.typed|_C\.cpython-3\d+-\w+-linux-gnu\.so)"
    r"|pynccl/include/pynccl/[\w/]+\.(h|inc|cpp|cuh|in)"
    r"|pynccl/lib/(libhostnccl\.so|preload/libnccl\.so\.2)"
    r"|rawnccl-[\d.]+\.dist-info/[\w./-]+"
)


def _library_problems(name: str, data: bytes) -> list[str]:
    """What is wrong with a shared library: what it links, what it exports, what is not stripped."""
    file = ELFFile(io.BytesIO(data))
    found = []
    dynamic = file.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    for tag in dynamic.iter_tags():
        needed = getattr(tag, "needed", None)  # the text of a tag DT_NEEDED
        if needed and not _SYSTEM.fullmatch(needed):
            found.append(f"{name} links {needed}")
        elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            found.append(f"{name} has a path of libraries")
    if file.get_section_by_name(".symtab") or file.get_section_by_name(".debug_info"):
        found.append(f"{name} is not stripped")
    symbols = file.get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    exported = {
        symbol.name
        for symbol in symbols.iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
    }
    allowed = _OF_EXTENSION if "/_C." in name else _OF_HOSTNCCL
    if other := sorted(symbol for symbol in exported if not re.fullmatch(allowed, symbol)):
        found.append(f"{name} exports {', '.join(other[:5])}")
    return found


def _licence_problems(names: set[str], archive: zipfile.ZipFile) -> list[str]:
    found = []
    for licence in _LICENCES:
        member = next((name for name in names if name.endswith(f"/licenses/{licence}")), None)
        if member is None:
            found.append(f"{licence} is missing")
        elif archive.read(member) != (ROOT / licence).read_bytes():
            found.append(f"{licence} is not that of the source tree")
    try:
        files = distribution("pybind11").files or []
    except PackageNotFoundError:
        return found
    texts = [str(file.read_text()).strip() for file in files if file.name == "LICENSE"]
    ours = (ROOT / "LICENSE-THIRD-PARTY").read_text()
    if not any(text in ours for text in texts):
        found.append("LICENSE-THIRD-PARTY has not the licence of the installed pybind11")
    return found


def problems(wheel: Path, version: str) -> list[str]:
    """What is wrong with a wheel, one line each.

    Args:
        wheel: the file.
        version: the version that it must have.
    """
    found = []
    if (size := wheel.stat().st_size) > LARGEST:
        found.append(f"it has {size} bytes, more than {LARGEST}")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        found += [f"{name} is unexpected" for name in names if not _EXPECTED.fullmatch(name)]
        sources = {
            *(path.relative_to(ROOT).as_posix() for path in (ROOT / "pynccl").rglob("*.py")),
            "pynccl/_C.pyi",
            "pynccl/py.typed",
            "pynccl/lib/libhostnccl.so",
            "pynccl/lib/preload/libnccl.so.2",
            *(
                f"pynccl/include/pynccl/c10d/{path.name}"
                for path in (ROOT / "csrc" / "c10d").glob("*.*")
            ),
        }
        found += [f"{name} is missing" for name in sorted(sources - names)]
        libraries = [name for name in names if re.search(r"\.so(\.\d+)?$", name)]
        for name in sorted(libraries):
            found += _library_problems(name, archive.read(name))
        if sum("/_C." in name for name in libraries) != 1:
            found.append("it has not one extension module")
        found += _licence_problems(names, archive)
        folder = f"rawnccl-{version}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        if (metadata["Name"], metadata["Version"]) != ("rawnccl", version):
            found.append(f"its metadata say {metadata['Name']} {metadata['Version']}")
        if (
            "pynccl = pynccl.c10d:register"
            not in archive.read(f"{folder}/entry_points.txt").decode()
        ):
            found.append("the entry point for torch is missing")
    return [f"{wheel.name}: {line}" for line in found]


def sdist_problems(sdist: Path) -> list[str]:
    """What of the source tree a source distribution lacks that the build reads, one line each."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"setup.py", "pyproject.toml", "CMakeLists.txt", "README.md", *_LICENCES}
    for folder in ("csrc", "pynccl"):
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            built = name.startswith(("pynccl/include/", "pynccl/lib/")) or "__pycache__" in name
            if path.is_file() and not built and path.suffix != ".so":
                expected.add(name)
    return [f"{sdist.name}: {name} is missing" for name in sorted(expected - names)]


def main() -> int:
    """Check wheels; the exit status."""
    found = []
    for argument in sys.argv[1:]:
        wheel = Path(argument)
        found += problems(wheel, wheel.name.split("-")[1])
    print("\n".join(found) or f"{len(sys.argv) - 1} checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
