"""Proves how communicators end on GPUs under NCCL's rules: ncclCommRevoke waits for the work that
precedes the communicator's operations on their streams, ncclCommFinalize waits for its graphs and
cannot be revoked, and after either of them NCCL frees memory immediately.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_async import comm_stream_of, start
from tests.nccl.test_life import check_works
from tests.support import gpu
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.long]

_LIMIT = 0.6  # seconds; a wait that ignores it ends with the launch
_ABSENT = 1


def _connected(rank: Rank, index: int) -> nccl.Communicator:
    comm = rank.communicator(index)
    check_works(rank, comm, list(range(rank.nranks)))
    return comm


def _graph_of_torch(rank: Rank, comm: nccl.Communicator, *, async_op: bool = False) -> Any:  # noqa: ANN401
    """With an all-reduce, by async_op on a stream of pynccl that joins the capture."""
    import torch

    torch.cuda.set_device(rank.device)
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    comm_stream = comm_stream_of(rank, comm) if async_op else None
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        if comm_stream:
            start(comm_stream, x).wait()
        else:
            comm.all_reduce(x)
    return graph


def _graph_of_pynccl(rank: Rank, comm: nccl.Communicator) -> nccl.Graph:
    stream, buffer = rank.stream(), rank.memory.put(np.ones(4, np.float32))
    with nccl.capture(stream) as graph:
        comm.all_reduce(buffer, stream=stream)
    return graph


@on_ranks(2, provider="cuda", ids=2, timeout=60)
def test_close_before_a_graph_of_torch_ends(rank: Rank) -> None:
    comm = _connected(rank, 1)
    graph = _graph_of_torch(rank, comm)
    comm.timeout = _LIMIT
    text = rf"ncclCommDestroy on rank {rank.rank} did not complete within {_LIMIT:g} s"
    with pytest.raises(nccl.NcclTimeoutError, match=text):
        comm.close()
    assert comm.closed
    comm.close()
    graph.reset()


_GRAPHS: dict[str, Callable[[Rank, nccl.Communicator], Any]] = {
    "torch": _graph_of_torch,
    "asynchronous": partial(_graph_of_torch, async_op=True),
    "pynccl": _graph_of_pynccl,
}


@pytest.mark.parametrize(
    ("how", "end"),
    [("torch", "close"), ("torch", "abort"), ("asynchronous", "close"), ("pynccl", "abort")],
)
@on_ranks(2, provider="cuda", ids=2, timeout=60)
def test_a_graph_outlives_a_revoked_communicator(rank: Rank, how: str, end: str) -> None:
    gpu.require(rank.provider, "ncclCommRevoke")
    comm = _connected(rank, 1)
    graph = _GRAPHS[how](rank, comm)
    comm.revoke()
    getattr(comm, end)()
    assert comm.closed
    if how == "pynccl":
        graph.close()
    else:
        graph.reset()


def _issue_behind(
    rank: Rank, first: nccl.Communicator, second: nccl.Communicator
) -> tuple[nccl.Stream, list[Any]] | None:
    """Return a stream with an all_reduce of the first communicator behind one of the second, and
    their buffers. Neither completes: the absent rank gets None and only aborts both at the end.
    """
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        first.abort()
        second.abort()
        return None
    stream = rank.stream()
    buffers = [rank.memory.put(np.ones(4, np.float32)) for _ in range(2)]
    for comm, buffer in zip((second, first), buffers, strict=True):
        comm.all_reduce(buffer, stream=stream)
    return stream, buffers


@on_ranks(2, provider="cuda", ids=3, timeout=90)
def test_the_revocation_of_an_expired_communicator_waits_for_another(rank: Rank) -> None:
    """That of the first waits for that of the second, which expires later."""
    gpu.require(rank.provider, "ncclCommRevoke")
    first, second = _connected(rank, 1), _connected(rank, 2)
    expired = [threading.Event(), threading.Event()]
    for comm, seconds, event in zip((first, second), (_LIMIT, 6 * _LIMIT), expired, strict=True):
        comm.timeout = seconds
        comm.on_timeout = lambda *_, event=event: event.set()
    issued = _issue_behind(rank, first, second)
    if issued is None:
        return
    stream, _buffers = issued
    assert expired[0].wait(30)
    assert expired[1].wait(30)
    with pytest.raises(nccl.NcclTimeoutError, match="did not complete within"):
        stream.synchronize()
    with second.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0])
    for comm in (first, second):
        assert comm.expired
        assert not comm.closed
        comm.close()
    rank.set_event("done")


@on_ranks(2, provider="cuda", ids=3, timeout=60)
def test_a_revocation_behind_another_communicator_expires(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommRevoke")
    first, second = _connected(rank, 1), _connected(rank, 2)
    issued = _issue_behind(rank, first, second)
    if issued is None:
        return
    stream, _buffers = issued
    first.timeout = 60
    with (
        nccl.deadline(_LIMIT),
        pytest.raises(nccl.NcclTimeoutError, match=r"^ncclCommRevoke on rank 0 .* within 0\.6 s$"),
    ):
        first.revoke()
    assert first.revoked
    second.revoke()
    with contextlib.suppress(nccl.NcclError):
        stream.synchronize()
    first.close()
    second.close()
    rank.set_event("done")


@pytest.mark.parametrize("call", ["finalize", "close"])
@on_ranks(2, provider="cuda", ids=2, timeout=60)
def test_the_limit_of_a_hung_operation_applies_in(rank: Rank, call: str) -> None:
    comm = _connected(rank, 1)
    comm.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        comm.abort()
        return
    stream, buffer = rank.stream(), rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(buffer, stream=stream)
    with pytest.raises(nccl.NcclTimeoutError, match=r"all_reduce #\d|ncclComm"):
        getattr(comm, call)()
    comm.close()
    with contextlib.suppress(nccl.NcclError):
        stream.synchronize()
    rank.set_event("done")
