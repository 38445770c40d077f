"""The key with which NCCL encrypts its sockets."""

from __future__ import annotations

import os
from typing import Final

from pynccl import _C
from pynccl.libraries import load

__all__ = ["set_encryption"]

_MODES: Final = {"none": 0, "psk": 1}  # ncclEncryptionMode_t
_LEAST_KEY_BYTES: Final = 32


def set_encryption(
    mode: str,
    psk: str | bytes | None = None,
    *,
    provider: str | os.PathLike[str] | None = None,
) -> None:
    """Set how NCCL's TCP sockets are encrypted from now on (ncclSetEncryption, NCCL 2.32).

    Call it on every rank, with the same key, before the first unique id and communicator are made.
    On CPUs nothing is on a wire; there ranks with different keys, or with and without one, do not
    come together, so that the mistake shows.

    Args:
        mode: ``"none"``, or ``"psk"`` for a key that the ranks share beforehand.
        psk: the key, 32 bytes or more and no zero among them; a str is encoded as UTF-8.
        provider: ``"cuda"``, ``"host"`` or None, as for :class:`pynccl.nccl.Communicator`.

    Raises:
        TypeError, ValueError: a wrong argument; the text never has the key.
        MissingFunctionError: the library is older than NCCL 2.32.
    """
    if mode not in _MODES:
        raise ValueError(f"mode: {mode!r} is none of {', '.join(map(repr, _MODES))}")
    if psk is not None and not isinstance(psk, str | bytes):
        raise TypeError(f"psk: expected a str, bytes or None, got {type(psk).__name__}")
    if (mode == "psk") != (psk is not None):
        raise ValueError(f"psk: mode {mode!r} takes {'a key' if mode == 'psk' else 'none'}")
    config = _C.ncclEncryptionConfig_t()
    config.mode = _MODES[mode]
    if psk is not None:
        key = psk.encode() if isinstance(psk, str) else psk
        if len(key) < _LEAST_KEY_BYTES or b"\0" in key:
            raise ValueError(
                f"psk: has {len(key)} bytes, must have at least {_LEAST_KEY_BYTES} and no zero"
            )
        config.psk = key
    load(provider).ncclSetEncryption(config)
