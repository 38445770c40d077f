"""Exceptions for failures of NCCL, the driver and the loader.

Invalid arguments raise :class:`ValueError` or :class:`TypeError` before anything is issued. The
exceptions can be pickled, so a spawned rank can report its error.
"""

from __future__ import annotations

from typing import Any

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
    """An NCCL function returned a result other than ``ncclSuccess``.

    Attributes:
        code: the ``ncclResult_t`` as an integer.
        function: the nccl.h function that returned it.
        rank: this rank in the communicator, -1 if there is no communicator.
    """

    def __init__(self, message: str, code: int = 0, function: str = "", rank: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.function = function
        self.rank = rank

    def __reduce__(self) -> tuple[type[NcclError], tuple[Any, ...]]:
        return type(self), (str(self), self.code, self.function, self.rank)


class NcclUnhandledCudaError(NcclError):
    """``ncclUnhandledCudaError``: a CUDA call inside NCCL failed."""


class NcclSystemError(NcclError):
    """``ncclSystemError``: a call to the operating system failed."""


class NcclInternalError(NcclError):
    """``ncclInternalError``: a bug in NCCL or memory corruption."""


class NcclInvalidArgumentError(NcclError):
    """``ncclInvalidArgument``: an argument has an invalid value."""


class NcclInvalidUsageError(NcclError):
    """``ncclInvalidUsage``: the call violates a rule of NCCL's API."""


class NcclRemoteError(NcclError):
    """``ncclRemoteError``: another rank died, left or aborted."""


class NcclInProgressError(NcclError):
    """``ncclInProgress``: a non-blocking communicator is not ready yet."""


class NcclTimeoutError(NcclError):
    """``ncclTimeout``: a time limit expired before all ranks took part.

    See :attr:`pynccl.nccl.Config.timeout` and ``docs/reliability.md``.

    Attributes:
        missing_ranks: the ranks that have not taken part, or None if unknown.
        missing_source: who knows them: "engine" (hostnccl), "store" (the ranks, through a store) or
            "RAS" (NCCL's service); None if they are unknown.
    """

    def __init__(
        self,
        message: str,
        code: int = 8,
        function: str = "",
        rank: int = -1,
        missing: tuple[list[int], str] | None = None,
    ) -> None:
        super().__init__(message, code, function, rank)
        self._missing = missing
        self.missing_ranks: list[int] | None = missing[0] if missing else None
        self.missing_source: str | None = missing[1] if missing else None

    def __reduce__(self) -> tuple[type[NcclError], tuple[Any, ...]]:
        kind, arguments = super().__reduce__()
        return kind, (*arguments, self._missing)


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
    """The loaded library predates the function, or does not implement it."""


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


def from_result(
    message: str,
    code: int,
    function: str,
    rank: int,
    missing: tuple[list[int], str] | None = None,
) -> NcclError:
    """Return the exception for an ``ncclResult_t``.

    Args:
        message: the text.
        code: the ``ncclResult_t`` as an integer.
        function: the nccl.h function that returned it.
        rank: this rank in the communicator, or -1.
        missing: for ``ncclTimeout``, the ranks that have not taken part and who knows them, or None
            if they are unknown.

    Returns:
        An instance of the subclass of :class:`NcclError` for the code, or of :class:`NcclError`
        itself for an unknown code.
    """
    kind = _BY_CODE.get(code, NcclError)
    if issubclass(kind, NcclTimeoutError):
        return kind(message, code, function, rank, missing)
    return kind(message, code, function, rank)
