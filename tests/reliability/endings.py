"""How a rank's wait ended, and the resources of its process before and after."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pynccl import nccl
from tests.support import holdings
from tests.support.memory import memory_of
from tests.support.rank import Rank

T = TypeVar("T")


@dataclass
class Ending:
    """An error that ended a wait.

    Attributes:
        began: when the call began.
        raised: when it raised.
        calling: the last call.
        kind: the exception's class.
        text: the exception's text, and the communicator's if only a stream raised.
    """

    began: float
    raised: float
    calling: str
    kind: str
    text: str


def ending_of(
    error: Exception, began: float, calling: str, comm: nccl.Communicator | None
) -> Ending:
    """Describe a caught exception."""
    raised = time.monotonic()
    failure = comm.async_error() if comm and not comm.closed else None
    kind = type(error).__name__
    return Ending(began, raised, calling, kind, f"{error} {failure or ''}")


@functools.cache
def _warm_up(provider: str, device: int | None) -> None:
    """Start the persistent threads of a process: that of the time limits, the driver's."""
    comm = nccl.Communicator(1, nccl.get_unique_id(provider), 0, provider=provider, device=device)
    with comm:
        stream = nccl.Stream(provider, device=device)
        buffer = memory_of(provider, device).put(np.ones(1, np.float32))
        comm.all_reduce(buffer, stream=stream)
        stream.synchronize()


def leaving_nothing(function: Callable[..., T]) -> Callable[..., T]:
    """Check that a rank's function leaks no descriptor, thread or memory in its process.

    Threads are not checked on GPUs, nor sockets with NCCL itself: those used by a call end with
    the ranks that it waits for.
    """

    @functools.wraps(function)
    def wrapper(member: Rank, *args: object, **keywords: object) -> T:
        _warm_up(member.provider, member.device)
        before = holdings.count()
        value = function(member, *args, **keywords)
        if member.provider != "host":
            del before["threads"]
            if "CUDA_DOUBLE_LIBRARIES" not in os.environ:
                del before["file descriptors"]
        holdings.check(before)
        return value

    return wrapper
