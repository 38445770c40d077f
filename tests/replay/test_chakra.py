"""Proves that execution traces of PyTorch are read: one of a program that runs here, and nodes of
NCCL's backend in the form that torch 2.13 gives them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver

from pynccl.replay import ReplayError, chakra, load, replay
from pynccl.trace.model import Operation, ProcessTrace
from tests.support.execution_traces import document, node
from tests.support.launcher import Launcher
from tests.support.rank import Rank


def _program(rank: Rank, prefix: str, groups: int) -> None:
    """All operations of c10d that gloo has, on one group, or on another one as well."""
    dist.init_process_group(
        "gloo", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    others = [dist.new_group(list(range(rank.world_size))) for _ in range(groups - 1)]
    observer = ExecutionTraceObserver()
    observer.register_callback(f"{prefix}-{rank.rank}.json")
    observer.start()
    x = torch.ones(6)
    blocks = [torch.zeros(6) for _ in range(rank.world_size)]
    dist.all_reduce(x)
    dist.all_reduce(x.bfloat16(), async_op=True).wait()
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.all_gather(blocks, x)
    dist.all_gather_into_tensor(torch.zeros(6 * rank.world_size), x)
    dist.reduce_scatter_tensor(torch.zeros(6 // rank.world_size), x)
    dist.all_to_all_single(torch.zeros(6), x)
    mine = [1, 2] if rank.rank == 0 else [3, 4]
    theirs = [1, 3] if rank.rank == 0 else [2, 4]
    if rank.world_size == 2:
        dist.all_to_all_single(torch.zeros(sum(theirs), 5), torch.ones(sum(mine), 5), theirs, mine)
    if rank.rank == 0:
        dist.send(x, 1)
    elif rank.rank == 1:
        dist.recv(x, 0)
    dist.gather(x, blocks if rank.rank == 1 else None, dst=1)
    dist.scatter(x, blocks if rank.rank == 1 else None, src=1)
    dist.barrier()
    for other in others:
        dist.all_reduce(x, group=other)
    observer.stop()
    observer.unregister_callback()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def launched() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.mark.filterwarnings("ignore")
def test_a_program_on_gloo(launched: Launcher, tmp_path: Path) -> None:
    launched(2, _program, str(tmp_path / "et"), 1)
    traces = [trace for path in sorted(tmp_path.iterdir()) for trace in load(str(path))]
    kinds = [operation.kind for operation in traces[0].operations]
    assert kinds == [
        *("all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "all_gather"),
        *("reduce_scatter", "all_to_all", "send", "recv", "send", "recv"),
        *("send", "gather", "scatter", "all_reduce"),
    ]
    first, second, broadcast = traces[0].operations[:3]
    assert (first.dtype, first.count, first.op) == ("float32", 6, "sum")
    assert (second.dtype, broadcast.root) == ("bfloat16", 1)
    assert [one.count for one in traces[0].operations[8:12]] == [5, 5, 10, 15]
    result = replay(traces)
    assert result.ok, result
    assert result.operations == sum(len(trace.operations) for trace in traces)
    assert result.checked == result.outputs
    assert replay(traces, scale=100).ok


@pytest.mark.filterwarnings("ignore")
def test_operations_that_do_not_say_their_group(launched: Launcher, tmp_path: Path) -> None:
    launched(2, _program, str(tmp_path / "et"), 2)
    path = str(tmp_path / "et-0.json")
    count = len(json.loads(Path(path).read_text())["nodes"])
    assert count > 10
    with pytest.raises(ReplayError, match="it has 2 groups, and its operations do not say theirs"):
        load(path)


# --- nodes of NCCL's backend


def _trace(*nodes: dict[str, Any], path: str = "et.json", **groups: list[int]) -> ProcessTrace:
    return chakra.parse(document(*nodes, **groups), path)


def _whole(rank: int) -> ProcessTrace:
    peer = 1 - rank
    wide = [3, 30, 0, 16, 4, "cuda:0"]
    mine, theirs = ([1, 2], [1, 3]) if rank == 0 else ([3, 4], [2, 4])
    return _trace(
        node("init", rank),
        node("allreduce", rank, outputs=[1, 10, 0, 8, 4, "cuda:0"]),
        node("wait", rank),
        node("_allgather_base", rank, outputs=wide),
        node("_reduce_scatter_base", rank, inputs=wide),
        node("broadcast", 1),
        node("send", peer),
        node("recv", peer),
        node("barrier", rank, dtype="Byte"),
        node(
            "all_to_allv",
            rank,
            inputs=[4, 40, 0, 10 * sum(mine), 2, "cuda:0"],
            outputs=[5, 50, 0, 10 * sum(theirs), 2, "cuda:0"],
            in_splits=mine,
            out_splits=theirs,
            dtype="BFloat16",
        ),
        node("all_to_all", rank, dtype="Long"),
    )


def test_nodes_of_nccl() -> None:
    traces = [_whole(0), _whole(1)]
    assert [trace.rank for trace in traces] == [0, 1]
    first, gathered, scattered, cast, send, recv, barrier, *uneven, last = traces[0].operations
    assert (first.kind, first.count, first.sendbuff) == ("all_reduce", 8, first.recvbuff)
    assert (gathered.count, scattered.count, cast.root, last.count) == (8, 8, 1, 4)
    assert (send.peer, recv.peer) == (1, 1)
    assert send.group == recv.group is not None
    assert (barrier.kind, barrier.dtype, barrier.count) == ("all_reduce", "uint8", 1)
    assert [(one.kind, one.peer, one.count, one.dtype) for one in uneven] == [
        ("send", 0, 10, "bfloat16"),
        ("recv", 0, 10, "bfloat16"),
        ("send", 1, 20, "bfloat16"),
        ("recv", 1, 30, "bfloat16"),
    ]
    assert len({one.group for one in uneven}) == 1
    assert uneven[0].group != send.group
    assert uneven[2].sendbuff == uneven[0].sendbuff + 20
    result = replay(traces)
    assert result.ok, result
    assert result.checked == result.outputs


def test_groups_by_ranks_and_by_stride() -> None:
    (operation,) = _trace(node("allreduce", 1, pg="5", size=3), **{"5": [4, 2, 9]}).operations
    trace = _trace(node("allreduce", 1, pg="5", size=3), **{"5": [4, 2, 9]})
    assert trace.rank == 2
    (comm,) = trace.communicators.values()
    assert (comm.id, comm.rank, comm.nranks) == (operation.communicator, 1, 3)
    trace = _trace(node("allreduce", 2, pg="6", size=4, start=1, stride=2))
    assert trace.rank == 5
    with pytest.raises(ReplayError, match="does not say which ranks group '6' of 4 has"):
        _trace(node("allreduce", 2, pg="6", size=4, start=-1, stride=-1))


def test_the_rank_of_messages_is_that_of_the_file() -> None:
    nodes = [node("send", 1), node("send", 1), node("allreduce", 0), node("send", 1)]
    operations: list[Operation] = _trace(*nodes[:2], path="/a1/et_rank_0.json").operations
    assert [one.peer for one in operations] == [1, 1]
    with pytest.raises(ReplayError, match="its nodes do not say which rank's it is"):
        _trace(*nodes[:2], path="/a1/et.json")
    batches = [one.group for one in _trace(*nodes).operations]
    assert batches[0] == batches[1] != batches[3]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (node("sparse_allreduce", 0), "it has an operation 'sparse_allreduce'"),
        (node("allreduce", 0, dtype="ComplexFloat"), "on dtype 'ComplexFloat'"),
        (node("broadcast", 5), "node 4 has rank 5 of 2"),
        ({"name": "record_param_comms", "attrs": []}, "this is not an execution trace"),
    ],
)
def test_nodes_that_cannot_be_replayed(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ReplayError, match=r"^et-0.json: ") as raised:
        _trace(wrong, path="et-0.json")
    assert says in str(raised.value)
