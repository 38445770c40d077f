"""Python access to the capsule from which C++ extensions obtain a communicator."""

from __future__ import annotations

import ctypes

__all__ = ["Capsule", "Report", "open_capsule"]

Report = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)  # of an error's text


class Capsule(ctypes.Structure):
    """PyncclCommunicator of csrc/extension/capsule.h."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("retain", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("handle", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)),
        ("function", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)),
        ("driver_function", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)),
        ("rank", ctypes.c_int),
        ("nranks", ctypes.c_int),
        ("device", ctypes.c_int),
        ("version", ctypes.c_int),
        ("on_device", ctypes.c_int),
        ("path", ctypes.c_char_p),
        ("issue", ctypes.c_void_p),
        ("simulate", ctypes.c_void_p),
        ("state", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, Report, ctypes.c_void_p)),
        (
            "in_symmetric_window",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
        ),
        ("last_operation", ctypes.CFUNCTYPE(ctypes.c_ulonglong, ctypes.c_void_p)),
        (
            "begin_wait",
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
        ),
        (
            "end_wait",
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong),
        ),
    ]


def open_capsule(capsule: object) -> tuple[Capsule, int]:
    """The struct behind a communicator's capsule, and its address. Both live as long as it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, b"pynccl.communicator.v1")
    return Capsule.from_address(address), address
