"""Has the kernel refuse process_vm_readv to this process and to all that it starts (seccomp)."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["install"]

_NUMBERS = {"x86_64": (0xC000003E, 310), "aarch64": (0xC00000B7, 270)}
_PR_SET_SECCOMP, _FILTER, _ALLOW, _ERRNO, _EPERM = 22, 2, 0x7FFF0000, 0x00050000, 1


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("true", ctypes.c_uint8),
        ("false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def install() -> None:
    """Install the filter; the process must have set PR_SET_NO_NEW_PRIVS."""
    _, number = _NUMBERS[platform.machine()]
    load, equal, result = 0x20, 0x15, 0x06
    code = (_Instruction * 4)(
        (load, 0, 0, 0),  # the number of the call
        (equal, 0, 1, number),
        (result, 0, 0, _ERRNO | _EPERM),
        (result, 0, 0, _ALLOW),
    )
    program = _Program(len(code), code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")
