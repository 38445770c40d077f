"""The exceptions that pynccl raises for what NCCL, the driver or the loader answered.

Mistakes in arguments are :class:`ValueError` and :class:`TypeError`, raised before anything is
sent. Every class here can be pickled, so that a spawned rank can report what happened to it.
"""

from __future__ import annotations

__all__ = [
    "DriverError",
    "LibraryNotFoundError",
    "MissingFunctionError",
    "NcclError",
    "NcclInProgressError",
    "NcclInternalError",
    "NcclInvalidArgumentError",
    "NcclInvalidUsageError",
    "NcclRemoteError",
    "NcclSystemError",
    "NcclTimeoutError",
    "NcclUnhandledCudaError",
    "from_result",
]


class NcclError(RuntimeError):
    """An NCCL function returned something else than ``ncclSuccess``.

    Attributes:
        code: the ``ncclResult_t`` as an integer.
        function: the nccl.h function that returned it.
        rank: this process's rank in the communicator, -1 where there is none.
    """

    def __init__(self, message: str, code: int = 0, function: str = "", rank: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.function = function
        self.rank = rank

    def __reduce__(self) -> tuple[type[NcclError], tuple[str, int, str, int]]:
        return type(self), (str(self), self.code, self.function, self.rank)


class NcclUnhandledCudaError(NcclError):
    """``ncclUnhandledCudaError``: a CUDA call inside NCCL failed."""


class NcclSystemError(NcclError):
    """``ncclSystemError``: a call to the operating system failed."""


class NcclInternalError(NcclError):
    """``ncclInternalError``: a bug in NCCL, or memory corruption."""


class NcclInvalidArgumentError(NcclError):
    """``ncclInvalidArgument``: an argument has an invalid value."""


class NcclInvalidUsageError(NcclError):
    """``ncclInvalidUsage``: the call breaks a rule of NCCL's API."""


class NcclRemoteError(NcclError):
    """``ncclRemoteError``: another rank died, left or aborted."""


class NcclInProgressError(NcclError):
    """``ncclInProgress``: a non-blocking communicator is not ready yet."""


class NcclTimeoutError(NcclError):
    """``ncclTimeout``: a deadline passed before all ranks had done their part."""


class DriverError(RuntimeError):
    """A stream or device call failed.

    Attributes:
        code: the ``CUresult`` as an integer.
        function: the CUDA driver function that returned it.
    """

    def __init__(self, message: str, code: int = 0, function: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.function = function

    def __reduce__(self) -> tuple[type[DriverError], tuple[str, int, str]]:
        return type(self), (str(self), self.code, self.function)


class LibraryNotFoundError(ImportError):
    """NCCL, hostnccl or the CUDA driver cannot be loaded."""


class MissingFunctionError(RuntimeError):
    """The loaded library is older than the function, or does not implement it."""


_BY_CODE: dict[int, type[NcclError]] = {
    1: NcclUnhandledCudaError,
    2: NcclSystemError,
    3: NcclInternalError,
    4: NcclInvalidArgumentError,
    5: NcclInvalidUsageError,
    6: NcclRemoteError,
    7: NcclInProgressError,
    8: NcclTimeoutError,
}


def from_result(message: str, code: int, function: str, rank: int) -> NcclError:
    """Make the exception of the class that belongs to an ``ncclResult_t``."""
    return _BY_CODE.get(code, NcclError)(message, code, function, rank)
