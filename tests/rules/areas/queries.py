"""Queries, error texts, and reduction operators."""

from __future__ import annotations

import ctypes as c
import threading
from typing import Any

from tests.rules.rank import F32, SUM, Rank
from tests.rules.rule import rule, stricter

_F64 = 8
_UNCHECKED = "without the check NCCL fails in a kernel, or crashes in 2.18"
_HOST = 1  # ncclScalarHostImmediate


@rule("GetVersion", "ncclGetVersion rejects a NULL pointer", nccl=["success", "invalidArgument"])
def query_version(rank: Rank) -> list[str]:
    return [rank.nccl.GetVersion(c.byref(c.c_int())), rank.nccl.GetVersion(None)]


for _name in ("CommCount", "CommUserRank", "CommCuDevice", "CommGetAsyncError"):

    def _query(rank: Rank, name: str = _name) -> list[Any]:
        comm, value, call = rank.create(), c.c_int(-1), getattr(rank.nccl, name)
        codes = [call(comm, c.byref(value)), call(comm, None), call(None, c.byref(value))]
        return [*codes, value.value]

    rule(
        _name,
        f"nccl{_name} rejects a NULL communicator and a NULL pointer",
        ["success", "invalidArgument", "invalidArgument", 1 if _name == "CommCount" else 0],
        name=f"query_{_name}",
    )(_query)


@rule(
    "CommCount",
    "Queries return their values in a group",
    nccl=["success", "success", "success"],
)
def query_in_group(rank: Rank) -> list[str]:
    comm = rank.create()
    rank.nccl.GroupStart()
    code = rank.nccl.CommCount(comm, c.byref(c.c_int()))
    return [code, rank.state(comm), rank.nccl.GroupEnd()]


@rule(
    "GetErrorString",
    "Each result has its own text; unknown results share one",
    nccl=[True, True],
)
def query_error_text(rank: Rank) -> list[bool]:
    texts = [rank.nccl.text("GetErrorString", code) for code in range(8)]
    unknown = {rank.nccl.text("GetErrorString", code) for code in (-1, 99)}
    return [len(set(texts)) == len(texts), len(unknown) == 1]


@rule(
    "GetErrorString",
    "ncclTimeout has its own text since 2.30",
    nccl={"2.18": False, "2.30": True},
)
def query_error_text_timeout(rank: Rank) -> bool:
    return rank.nccl.text("GetErrorString", 8) != rank.nccl.text("GetErrorString", 99)


@rule(
    "GetLastError",
    "ncclGetLastError accepts a NULL communicator, and its text persists after a success",
    nccl=[True, True, True],
)
def query_last_error(rank: Rank) -> list[bool]:
    comm = rank.create()
    rank.refused(comm)
    found = [bool(rank.nccl.text("GetLastError", at)) for at in (comm, None)]
    rank.sum(comm)
    return [*found, bool(rank.nccl.text("GetLastError", comm))]


@rule("GetLastError", "The text of ncclGetLastError is shared by all threads", nccl=True)
def query_last_error_of_threads(rank: Rank) -> bool:
    comm, texts = rank.create(), []
    rank.refused(comm)
    other = threading.Thread(target=lambda: texts.append(rank.nccl.text("GetLastError", comm)))
    other.start()
    other.join()
    return bool(texts[0])


@rule(
    "CommMemStats",
    "ncclCommMemStats has four statistics and rejects other numbers and NULL arguments",
    nccl=[["success"] * 4, "invalidArgument", "invalidArgument", "invalidArgument"],
)
def query_memory(rank: Rank) -> list[Any]:
    comm, value = rank.create(), c.byref(c.c_uint64())
    known = [rank.nccl.CommMemStats(comm, number, value) for number in range(4)]
    return [
        known,
        rank.nccl.CommMemStats(comm, 4, value),
        rank.nccl.CommMemStats(comm, 0, None),
        rank.nccl.CommMemStats(None, 0, value),
    ]


# Reduction operators


def _reduce(rank: Rank, comm: c.c_void_p, op: int, dtype: int = F32) -> str:
    stream, memory = rank.cuda.stream(), rank.cuda.memory()
    return rank.nccl.AllReduce(memory, memory, 4, dtype, op, comm, stream)


def _operator(rank: Rank, comm: c.c_void_p) -> c.c_int:
    op = c.c_int(-1)
    create = rank.nccl.RedOpCreatePreMulSum
    rank.need(create(c.byref(op), c.byref(c.c_float(2)), F32, _HOST, comm))
    return op


@rule(
    "RedOpDestroy",
    "A destroyed operator is rejected and cannot be destroyed again",
    nccl=["success", "success", "invalidArgument", "invalidArgument"],
)
def redop_destroy(rank: Rank) -> list[str]:
    comm = rank.create()
    op = _operator(rank, comm)
    return [
        _reduce(rank, comm, op.value),
        rank.nccl.RedOpDestroy(op, comm),
        _reduce(rank, comm, op.value),
        rank.nccl.RedOpDestroy(op, comm),
    ]


@rule("RedOpDestroy", "Only user-created operators can be destroyed", nccl=["invalidArgument"] * 5)
def redop_destroy_others(rank: Rank) -> list[str]:
    comm = rank.create()
    codes = [rank.nccl.RedOpDestroy(op, comm) for op in (-1, SUM, 5, 77)]
    return [*codes, rank.nccl.RedOpDestroy(5, None)]


@rule(
    "RedOpCreatePreMulSum",
    "An operator is bound to a communicator and a data type",
    nccl=["invalidArgument", "invalidArgument", "invalidArgument", "success"],
)
def redop_other(rank: Rank) -> list[str]:
    comm, other = rank.create(), rank.create()
    op = _operator(rank, comm)
    return [
        _reduce(rank, other, op.value),
        rank.nccl.RedOpDestroy(op, other),
        _reduce(rank, comm, op.value, _F64),
        _reduce(rank, comm, op.value),
    ]


@rule("RedOpCreatePreMulSum", "A NULL communicator is rejected", nccl="invalidArgument")
def redop_null_comm(rank: Rank) -> str:
    place, scalar = c.byref(c.c_int()), c.byref(c.c_float(2))
    return rank.nccl.RedOpCreatePreMulSum(place, scalar, F32, _HOST, None)


@rule(
    "RedOpCreatePreMulSum",
    "An unknown data type is an internal error; the residence of the scalar is not checked",
    nccl={
        "2.18": "crash SIGSEGV",
        "2.24": ["internalError", "internalError", "success"],
    },
    alone=True,
    double=stricter(["invalidArgument"] * 3, _UNCHECKED),
    host=stricter(["invalidArgument"] * 3, _UNCHECKED),
)
def redop_arguments(rank: Rank) -> list[str]:
    comm, scalar = rank.create(), c.byref(c.c_float(2))
    create, place = rank.nccl.RedOpCreatePreMulSum, c.byref(c.c_int())
    return [
        create(place, scalar, -1, _HOST, comm),
        create(place, scalar, 99, _HOST, comm),
        create(place, scalar, F32, 2, comm),
    ]


@rule("RedOpCreatePreMulSum", "The number of a destroyed operator is reused", nccl=True)
def redop_number_again(rank: Rank) -> bool:
    comm, ops = rank.create(), []
    for _ in range(2):
        op = _operator(rank, comm)
        rank.need(rank.nccl.RedOpDestroy(op, comm))
        ops.append(op.value)
    return ops[0] == ops[1]


@rule(
    "RedOpCreatePreMulSum",
    "A NULL device scalar is not checked",
    nccl="success",
    double=stricter("invalidArgument", _UNCHECKED),
    host=stricter("invalidArgument", _UNCHECKED),
)
def redop_null_scalar(rank: Rank) -> str:
    comm = rank.create()
    return rank.nccl.RedOpCreatePreMulSum(c.byref(c.c_int()), None, F32, 0, comm)
