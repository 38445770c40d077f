"""The exceptions of the mirror, which derive from torch's and pynccl's.

An NCCL error is raised as a :class:`BackendError`, which is both torch's ``DistBackendError`` and
pynccl's ``NcclError``, so the ``except`` clauses of existing scripts catch it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    QueueEmptyError,
)

from pynccl import errors

__all__ = [
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "QueueEmptyError",
]


class BackendError(errors.NcclError, DistBackendError):
    """NCCL or the driver failed."""


class BackendSystemError(errors.NcclSystemError, BackendError):
    """``ncclSystemError``: a call to the operating system failed."""


class BackendInternalError(errors.NcclInternalError, BackendError):
    """``ncclInternalError``: a bug in NCCL, or memory corruption."""


class BackendInvalidUsageError(errors.NcclInvalidUsageError, BackendError):
    """``ncclInvalidUsage``: the ranks' calls do not match."""


class BackendRemoteError(errors.NcclRemoteError, BackendError):
    """``ncclRemoteError``: another rank died, left or aborted."""


class BackendTimeoutError(errors.NcclTimeoutError, BackendError):
    """An operation took longer than the timeout."""


class MismatchError(ValueError, RuntimeError):
    """Tensors, lists or sizes do not match.

    torch raises ValueError or RuntimeError for such mistakes, depending on where it detects them.
    """


_TRANSLATED: dict[type[errors.NcclError], type[BackendError]] = {
    errors.NcclSystemError: BackendSystemError,
    errors.NcclInternalError: BackendInternalError,
    errors.NcclInvalidUsageError: BackendInvalidUsageError,
    errors.NcclRemoteError: BackendRemoteError,
    errors.NcclTimeoutError: BackendTimeoutError,
}


@contextmanager
def translated(*kinds: type[errors.NcclError | errors.DriverError]) -> Iterator[None]:
    """Translate exceptions of the given :mod:`pynccl.errors` classes to those of the mirror."""
    try:
        yield
    except kinds as error:
        raise translate(error) from None


def translate(error: errors.NcclError | errors.DriverError) -> BackendError:
    """Return the mirror's exception for one of :mod:`pynccl.errors`."""
    if isinstance(error, BackendError):
        return error
    if isinstance(error, errors.DriverError):
        return BackendError(str(error), function=error.function)
    kind = _TRANSLATED.get(type(error), BackendError)
    return kind(*error.__reduce__()[1])
