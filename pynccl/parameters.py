"""The parameters of a loaded NCCL: keys, values and types, from NCCL's parameter API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from pynccl import _C
from pynccl.errors import NcclInvalidArgumentError
from pynccl.libraries import load

__all__ = ["Param", "Params", "params"]

# The C types that nccl.h provides a getter for, and the getter's suffix.
_GETTERS: Final = {
    "int8_t": "I8",
    "int16_t": "I16",
    "int32_t": "I32",
    "int64_t": "I64",
    "uint8_t": "U8",
    "uint16_t": "U16",
    "uint32_t": "U32",
    "uint64_t": "U64",
    "const char*": "Str",
}
_MAX_BYTES: Final = 1 << 16


class Param:
    """One parameter of a library (ncclParamBind), returned by :meth:`Params.param`.

    Args:
        library: the library.
        key: the name of the parameter, such as ``"NCCL_DEBUG"``.

    Attributes:
        key: the name of the parameter.
        c_type: its C type, or None if nccl.h has no getter for it (booleans, enumerations).

    Raises:
        NcclInvalidArgumentError: the library has no such parameter.
    """

    def __init__(self, library: _C.Library, key: str) -> None:
        self.key = key
        self._library = library
        self._handle = library.ncclParamBind(key)
        self.c_type = next((name for name in _GETTERS if self._has(name)), None)

    def _has(self, c_type: str) -> bool:
        try:
            self._get(c_type)
        except NcclInvalidArgumentError:
            return False
        return True

    def _get(self, c_type: str) -> int | str:
        getter = getattr(self._library, "ncclParamGet" + _GETTERS[c_type])
        value: int | str | None = getter(self._handle)
        return "" if value is None else value

    def get(self, c_type: str | None = None) -> int | str:
        """Read the value with its C type (ncclParamGetI8 to ncclParamGetU64, ncclParamGetStr).

        Args:
            c_type: the expected type, such as ``"int64_t"`` or ``"const char*"``; None is the
                parameter's own type.

        Returns:
            An integer, or a str for ``"const char*"`` and for a type without a getter.

        Raises:
            ValueError: nccl.h has no getter for such a type.
            TypeError: the parameter has another type; NCCL does not convert values.
        """
        if c_type is None:
            return self.text if self.c_type is None else self._get(self.c_type)
        if c_type not in _GETTERS:
            raise ValueError(f"c_type: {c_type!r} is not one of {', '.join(_GETTERS)}")
        if c_type != self.c_type:
            has = self.c_type or "a type without a getter"
            raise TypeError(f"c_type: {self.key} has {has}, not {c_type}")
        return self._get(c_type)

    @property
    def text(self) -> str:
        """The value as text (ncclParamGetParameter)."""
        return self._library.ncclParamGetParameter(self.key)[0] or ""

    @property
    def raw(self) -> bytes:
        """The bytes of the value in memory, a string with its terminating zero (ncclParamGet)."""
        return self._library.ncclParamGet(self._handle, _MAX_BYTES)[0]

    def __repr__(self) -> str:
        return f"<pynccl.nccl.Param {self.key}={self.text}>"


class Params(Mapping[str, str]):
    """The parameters of a library: a read-only mapping from keys to values as text.

    Values are those in effect: from NCCL's configuration file, the environment, or the default.
    ``NCCL_PARAM_DUMP_ALL=true`` in the environment adds undocumented parameters. Uses
    ncclParamGetAllParameterKeys and ncclParamGetParameter (NCCL 2.30.4).

    Args:
        library: the library.

    Raises:
        MissingFunctionError: the library is older than NCCL 2.30.4.
    """

    def __init__(self, library: _C.Library) -> None:
        self._library = library
        self._keys = tuple(library.ncclParamGetAllParameterKeys()[0])

    def __getitem__(self, key: str) -> str:
        try:
            return self._library.ncclParamGetParameter(key)[0] or ""
        except NcclInvalidArgumentError:
            if key in self:
                raise
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def param(self, key: str) -> Param:
        """Look up a parameter with its type (ncclParamBind).

        Args:
            key: the name of the parameter.

        Returns:
            A Param.

        Raises:
            TypeError: the key is not a str.
            KeyError: the library has no such parameter.
        """
        if not isinstance(key, str):
            raise TypeError(f"key: expected a str, got {key!r}")
        try:
            return Param(self._library, key)
        except NcclInvalidArgumentError:
            raise KeyError(key) from None

    def dump(self) -> None:
        """Print all parameters to NCCL's log, by default standard output (ncclParamDumpAll).

        Raises:
            MissingFunctionError: the library is older than NCCL 2.30.4.
        """
        self._library.ncclParamDumpAll()

    def __repr__(self) -> str:
        return f"<pynccl.nccl.Params of {self._library.path}: {dict(self)}>"


def params(provider: str | os.PathLike[str] | None = None) -> Params:
    """Return the parameters of a provider's library (ncclParamGetAllParameterKeys, NCCL 2.30.4).

    Args:
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`pynccl.nccl.Communicator`.

    Returns:
        A Params, a mapping from keys to values.

    Raises:
        ValueError: there is no such provider.
        LibraryNotFoundError: its library was not found.
        MissingFunctionError: the library is older than NCCL 2.30.4.
    """
    return Params(load(provider))
