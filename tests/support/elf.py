"""Reads the SONAME and the exported functions of a shared library."""

from __future__ import annotations

import struct
from pathlib import Path

_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_SONAME = 14
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


class Elf:
    """A 64-bit little-endian shared library."""

    def __init__(self, path: str | Path) -> None:
        self._data = Path(path).read_bytes()
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", self._data, 0x28)
        size, count = struct.unpack_from("<HH", self._data, 0x3A)
        self._sections = [_SECTION.unpack_from(self._data, table + i * size) for i in range(count)]

    def _section(self, kind: int) -> tuple[bytes, bytes]:
        """The contents of the only section of a kind, and of the strings it refers to."""
        section = next(s for s in self._sections if s[1] == kind)
        strings = self._sections[section[6]]
        return self._contents(section), self._contents(strings)

    def _contents(self, section: tuple[int, ...]) -> bytes:
        return self._data[section[4] : section[4] + section[5]]

    @property
    def soname(self) -> str | None:
        entries, strings = self._section(_SHT_DYNAMIC)
        for tag, value in _DYNAMIC.iter_unpack(entries):
            if tag == _DT_SONAME:
                return _text(strings, value)
        return None

    @property
    def exports(self) -> set[str]:
        symbols, strings = self._section(_SHT_DYNSYM)
        return {
            _text(strings, name)
            for name, info, _, section, _, _ in _SYMBOL.iter_unpack(symbols)
            if section and info >> 4 in (1, 2) and name  # global or weak, and defined
        }
