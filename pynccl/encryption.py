"""Encryption of NCCL's sockets."""

from __future__ import annotations

import os
from typing import Final

from pynccl import _C
from pynccl.libraries import load

__all__ = ["set_encryption"]

_MODES: Final = {"none": 0, "psk": 1}  # ncclEncryptionMode_t
_MIN_KEY_BYTES: Final = 32


def set_encryption(
    mode: str,
    psk: str | bytes | None = None,
    *,
    provider: str | os.PathLike[str] | None = None,
) -> None:
    """Set the encryption of NCCL's TCP sockets (ncclSetEncryption, NCCL 2.32).

    Call it on every rank with the same key, before creating the first unique id and the first
    communicator. hostnccl sends no data over a network, but creating a communicator fails if ranks
    have different keys or only some have one, so tests catch the mistake.

    Args:
        mode: ``"none"``, or ``"psk"`` for a pre-shared key.
        psk: the key, at least 32 bytes without a zero byte; a str is encoded as UTF-8.
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`pynccl.nccl.Communicator`.

    Raises:
        TypeError, ValueError: an invalid argument; the text never contains the key.
        LibraryNotFoundError: the provider's library was not found.
        MissingFunctionError: the library is older than NCCL 2.32.
        NcclError: NCCL failed.
    """
    if mode not in _MODES:
        raise ValueError(f"mode: {mode!r} is not one of {', '.join(map(repr, _MODES))}")
    if psk is not None and not isinstance(psk, str | bytes):
        raise TypeError(f"psk: expected a str, bytes or None, got {type(psk).__name__}")
    if (mode == "psk") != (psk is not None):
        raise ValueError(f"psk: mode {mode!r} requires {'a key' if mode == 'psk' else 'psk=None'}")
    config = _C.ncclEncryptionConfig_t()
    config.mode = _MODES[mode]
    if psk is not None:
        key = psk.encode() if isinstance(psk, str) else psk
        if len(key) < _MIN_KEY_BYTES or b"\0" in key:
            raise ValueError(
                f"psk: has {len(key)} bytes, must have at least {_MIN_KEY_BYTES} and no zero byte"
            )
        config.psk = key
    load(provider).ncclSetEncryption(config)
