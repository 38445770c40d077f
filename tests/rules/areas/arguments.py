"""The arguments of operations."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from typing import Any

from tests.rules.api import MissingError
from tests.rules.rank import F32, SUM, Rank
from tests.rules.rule import differs, rule, stricter

# The arguments of each operation, from send and receive buffer, count, type, operator, root.
_Call = Callable[..., str]
_CALLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "AllReduce": lambda s, r, n, t, o, p: (s, r, n, t, o),
    "Reduce": lambda s, r, n, t, o, p: (s, r, n, t, o, p),
    "Broadcast": lambda s, r, n, t, o, p: (s, r, n, t, p),
    "Bcast": lambda s, r, n, t, o, p: (r, n, t, p),
    "AllGather": lambda s, r, n, t, o, p: (s, r, n, t),
    "ReduceScatter": lambda s, r, n, t, o, p: (s, r, n, t, o),
    "AlltoAll": lambda s, r, n, t, o, p: (s, r, n, t),
    "Gather": lambda s, r, n, t, o, p: (s, r, n, t, p),
    "Scatter": lambda s, r, n, t, o, p: (s, r, n, t, p),
    "Send": lambda s, r, n, t, o, p: (s, n, t, p),
    "Recv": lambda s, r, n, t, o, p: (r, n, t, p),
}
_ROOTED = ("Reduce", "Broadcast", "Bcast", "Gather", "Scatter", "Send", "Recv")
_REDUCING = ("AllReduce", "Reduce", "ReduceScatter")


def _calls(
    rank: Rank,
    comm: c.c_void_p | None,
    names: Any = tuple(_CALLS),  # noqa: ANN401 - names of operations
    **given: Any,  # noqa: ANN401 - of a call
) -> list[str]:
    """The distinct codes of all operations of the release, called with the same arguments."""
    stream, memory = rank.cuda.stream(), rank.cuda.memory()
    values: dict[str, Any] = {"s": memory, "r": memory, "n": 4, "t": F32, "o": SUM, "p": 0, **given}
    codes = set()
    for name in names:
        try:
            codes.add(getattr(rank.nccl, name)(*_CALLS[name](**values), comm, stream))
        except MissingError:
            continue
    return sorted(codes)


_REFUSED = ["invalidArgument"]
_FLOAT8E4M3, _AVG = 10, 4


@rule("AllReduce", "All operations reject unknown data types", nccl=[_REFUSED] * 3)
def argument_dtype(rank: Rank) -> list[list[str]]:
    comm = rank.create()
    return [_calls(rank, comm, t=dtype) for dtype in (-1, 12, 99)]


@rule("AllReduce", "Unknown reduction operators are rejected", nccl=[_REFUSED] * 4)
def argument_operator(rank: Rank) -> list[list[str]]:
    comm = rank.create()
    return [_calls(rank, comm, _REDUCING, o=op) for op in (-1, 5, 99, 2**31 - 1)]


@rule(
    "AllReduce",
    "A communicator of one rank rejects scaled reductions of 8-bit floats, unless they are empty",
    nccl=[_REFUSED, ["success"]],
    source="read (device/onerank.cu:73 of 2.30.7); measured on a GPU with 2.28.9",
    host=differs([["success"]] * 2, "hostnccl computes them"),
)
def argument_float8_of_one_rank(rank: Rank) -> list[list[str]]:
    comm = rank.create()
    return [_calls(rank, comm, _REDUCING, t=_FLOAT8E4M3, o=_AVG, n=count) for count in (4, 0)]


@rule("Send", "A root or peer outside the communicator is rejected", nccl=[_REFUSED] * 3)
def argument_root(rank: Rank) -> list[list[str]]:
    comm = rank.create()
    return [_calls(rank, comm, _ROOTED, p=root) for root in (-1, 1, 99)]


@rule("AllReduce", "All operations reject a NULL communicator", nccl=_REFUSED)
def argument_null_comm(rank: Rank) -> list[str]:
    return _calls(rank, None)


@rule(
    "AllReduce",
    "An operation on a NULL communicator in a group fails the group",
    nccl=["success", "invalidArgument", "invalidArgument"],
)
def argument_null_comm_in_group(rank: Rank) -> list[str]:
    return [rank.nccl.GroupStart(), rank.sum(None), rank.nccl.GroupEnd()]


@rule(
    "AllReduce",
    "With a count of 0, buffers may be NULL, but the data type is still checked",
    nccl=[["success"], ["success"], _REFUSED],
)
def argument_count_0(rank: Rank) -> list[list[str]]:
    comm = rank.create()
    names = tuple(name for name in _CALLS if name not in {"Send", "Recv"})
    return [
        _calls(rank, comm, names, n=0),
        _calls(rank, comm, names, n=0, s=None, r=None),
        _calls(rank, comm, names, n=0, t=99),
    ]


_NULL = "a kernel that reads address 0 terminates the program"
_UNCHECKED = ("AllReduce", "AllGather", "Broadcast", "ReduceScatter")


@rule(
    "AllReduce",
    "NULL buffers are not checked: the kernel faults on them",
    nccl=["success"],
    alone=True,
    source="measured; kernels were emulated",
    double=stricter(["invalidArgument"], _NULL),
    host=stricter(["invalidArgument"], _NULL),
)
def argument_null_buffer(rank: Rank) -> list[str]:
    return _calls(rank, rank.create(), _UNCHECKED, s=None, r=None)


@rule(
    "AllReduce",
    "With NCCL_CHECK_POINTERS=1 a NULL receive buffer or send buffer is rejected",
    nccl=[_REFUSED, _REFUSED],
    env={"NCCL_CHECK_POINTERS": "1"},
)
def argument_null_buffer_checked(rank: Rank) -> list[list[str]]:
    comm = rank.create()
    return [
        _calls(rank, comm, [name for name in _CALLS if name != "Send"], r=None),
        _calls(rank, comm, [name for name in _CALLS if name not in {"Bcast", "Recv"}], s=None),
    ]


@rule("AllReduce", "The NULL stream is the default stream", nccl="success")
def stream_null(rank: Rank) -> str:
    comm, memory = rank.create(), rank.cuda.memory()
    return rank.nccl.AllReduce(memory, memory, 4, F32, SUM, comm, None)


@rule(
    "AllReduce",
    "An operation does not depend on the current device and does not change it",
    nccl=["success", "done", True],
    ranks=2,
    devices=2,
)
def stream_other_device_current(rank: Rank) -> list[Any]:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    rank.cuda.use(rank.peer)
    code = rank.nccl.AllReduce(memory, memory, 4, F32, SUM, comm, stream)
    return [code, rank.cuda.finish(stream), rank.cuda.current() == rank.peer]


@rule("AllReduce", "Partially overlapping buffers are not rejected", nccl="success")
def buffer_overlap(rank: Rank) -> str:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    behind = c.c_void_p((memory.value or 0) + 8)
    return rank.nccl.AllReduce(memory, behind, 4, F32, SUM, comm, stream)
