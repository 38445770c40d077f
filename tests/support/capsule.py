"""Python access to the capsule from which C++ extensions obtain a communicator."""

from __future__ import annotations

import ctypes

import numpy as np

from pynccl import nccl

__all__ = ["Capsule", "Report", "issue_operations", "open_capsule"]

Report = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)  # of an error's text


class _Operation(ctypes.Structure):
    """PyncclOperation of csrc/extension/capsule.h."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("op", ctypes.c_int),
        ("root_or_peer", ctypes.c_int),
        ("sendbuff", ctypes.c_void_p),
        ("recvbuff", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
    )


_IssueFunction = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(_Operation),
    ctypes.c_size_t,
    ctypes.c_double,
    Report,
    ctypes.c_void_p,
)
_KINDS = (
    "all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter send recv "
    "put_signal signal wait_signal"
)


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
        ("issue", _IssueFunction),
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


def issue_operations(
    comm: nccl.Communicator, *operations: tuple[str, np.ndarray | None, np.ndarray | None, int, int]
) -> str:
    """Issue operations (name, input, output, count, root or peer). Returns the error's text."""
    capsule = comm.__pynccl_communicator__()
    struct, pointer = open_capsule(capsule)
    texts: list[bytes] = []
    report = Report(lambda _, text: texts.append(text))

    def address(array: np.ndarray | None) -> int | None:
        return None if array is None else array.ctypes.data

    made = [
        _Operation(
            _KINDS.split().index(name), 7, 0, root, address(sent), address(received), count, None
        )
        for name, sent, received, count, root in operations
    ]
    result = struct.issue(pointer, (_Operation * len(made))(*made), len(made), 0.0, report, None)
    assert (result != 0) == bool(texts)
    return b"".join(texts).decode()
