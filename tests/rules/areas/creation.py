"""Unique IDs and the creation of communicators."""

from __future__ import annotations

import ctypes as c
from typing import Any

from tests.rules.api import UniqueId
from tests.rules.rank import Rank, handle
from tests.rules.rule import differs, rule, stricter

_TWICE = stricter(["success", "invalidUsage"], "a creation that never completes is rejected")
_ID = "an ID that no call returned is an invalid argument; NCCL tries to connect to its address"


@rule("GetUniqueId", "ncclGetUniqueId rejects a NULL pointer", nccl="invalidArgument")
def id_null(rank: Rank) -> str:
    return rank.nccl.GetUniqueId(None)


@rule("GetUniqueId", "Every unique ID is different", nccl=True)
def id_different(rank: Rank) -> bool:
    return bytes(rank.id()) != bytes(rank.id())


@rule(
    "CommInitRank",
    "An ID of all zeros is an internal error",
    nccl={
        "2.18": ["internalError", "null"],
        "2.24": "crash SIGABRT",
        "2.28": ["internalError", "null"],
    },
    alone=True,
    double=differs(["invalidArgument", "null"], _ID),
    host=differs(["invalidArgument", "null"], _ID),
)
def id_zeros(rank: Rank) -> list[str]:
    comm = rank.empty()
    return [rank.nccl.CommInitRank(c.byref(comm), 1, UniqueId(), 0), handle(comm)]


@rule(
    "CommInitRank",
    "Reusing an ID never returns; 2.18 reports an error",
    nccl={"2.18": ["success", "systemError"], "2.24": "hang"},
    alone=True,
    seconds=4,
    double=_TWICE,
    host=_TWICE,
)
def id_used_twice(rank: Rank) -> list[str]:
    made = rank.id()
    comms = [c.c_void_p(), c.c_void_p()]
    return [rank.nccl.CommInitRank(c.byref(comm), 1, made, 0) for comm in comms]


@rule("CommInitRank", "ncclCommInitRank waits for all ranks", nccl="waits success", ranks=2)
def init_waits(rank: Rank) -> str:
    comm, made = c.c_void_p(), rank.id()
    return rank.waits(lambda: rank.nccl.CommInitRank(c.byref(comm), 2, made, rank.rank))


@rule(
    "CommInitRank",
    "A rank outside [0, nranks) is rejected, and the handle is NULL",
    nccl=[["invalidArgument", "null"]] * 3,
)
def init_rank(rank: Rank) -> list[list[str]]:
    found = []
    for number in (-1, 1, 9):
        comm = rank.empty()
        code = rank.nccl.CommInitRank(c.byref(comm), 1, rank.id(), number)
        found.append([code, handle(comm)])
    return found


@rule(
    "CommInitRank",
    "Fewer than 1 rank is rejected; since 2.24 the handle is not written",
    nccl={
        "2.18": [["invalidArgument", "null"]] * 2,
        "2.24": [["invalidArgument", "untouched"]] * 2,
    },
)
def init_nranks(rank: Rank) -> list[list[str]]:
    found = []
    for count in (0, -1):
        comm = rank.empty()
        code = rank.nccl.CommInitRank(c.byref(comm), count, rank.id(), 0)
        found.append([code, handle(comm)])
    return found


@rule("CommInitRank", "A NULL pointer for the handle is rejected", nccl="invalidArgument")
def init_null_handle(rank: Rank) -> str:
    return rank.nccl.CommInitRank(None, 1, rank.id(), 0)


@rule(
    "CommInitRank",
    "In a group the handle is set immediately",
    nccl=["success", "set", "success", "works"],
)
def init_in_group(rank: Rank) -> list[str]:
    comm, made = rank.empty(), rank.id()
    rank.nccl.GroupStart()
    codes = [rank.nccl.CommInitRank(c.byref(comm), 1, made, 0), handle(comm)]
    return [*codes, rank.nccl.GroupEnd(), rank.works(comm)]


@rule(
    "CommInitRank",
    "A rejected ncclCommInitRank fails its group; the other handle stays set and can be aborted",
    nccl=["success", "invalidArgument", "invalidArgument", "set", "null", "success"],
)
def init_in_group_one_refused(rank: Rank) -> list[str]:
    good, bad, ids = rank.empty(), rank.empty(), [rank.id(), rank.id()]
    rank.nccl.GroupStart()
    codes = [
        rank.nccl.CommInitRank(c.byref(good), 1, ids[0], 0),
        rank.nccl.CommInitRank(c.byref(bad), 1, ids[1], 5),
        rank.nccl.GroupEnd(),
    ]
    codes += [handle(good), handle(bad)]
    return [*codes, rank.nccl.CommAbort(good)] if handle(good) == "set" else codes


@rule(
    "CommInitRank",
    "A communicator cannot be used in the group that creates it",
    nccl=["success", "invalidArgument", "invalidArgument"],
)
def init_used_in_group(rank: Rank) -> list[str]:
    comm, made = rank.empty(), rank.id()
    rank.nccl.GroupStart()
    code = rank.nccl.CommInitRank(c.byref(comm), 1, made, 0)
    return [code, rank.sum(comm), rank.nccl.GroupEnd()]


@rule(
    "CommInitRank",
    "Two ranks on one GPU are rejected, and the handle is NULL",
    nccl={
        "2.18": ["invalidUsage", "null"],
        "2.24": "crash SIGABRT",
        "2.28": ["invalidUsage", "null"],
    },
    ranks=2,
    one_device=True,
    alone=True,
    host=differs(["success", "set"], "ranks of hostnccl share the CPUs"),
)
def init_one_gpu(rank: Rank) -> list[str]:
    rank.cuda.use(0)
    comm = rank.empty()
    return [rank.nccl.CommInitRank(c.byref(comm), 2, rank.id(), rank.rank), handle(comm)]


@rule(
    "CommInitRank",
    "Since 2.30 NCCL_MULTI_RANK_GPU_ENABLE allows two ranks on one GPU",
    nccl={
        "2.18": "invalidUsage",
        "2.24": "crash SIGABRT",
        "2.28": "invalidUsage",
        "2.30": "success",
    },
    ranks=2,
    one_device=True,
    env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
)
def init_one_gpu_allowed(rank: Rank) -> str:
    rank.cuda.use(0)
    comm = rank.empty()
    return rank.nccl.CommInitRank(c.byref(comm), 2, rank.id(), rank.rank)


@rule(
    "CommInitRank",
    "The device is the calling thread's current device",
    nccl=["success", 1],
    devices=2,
)
def init_device(rank: Rank) -> list[Any]:
    rank.cuda.use(1)
    comm, device = rank.empty(), c.c_int(-1)
    code = rank.nccl.CommInitRank(c.byref(comm), 1, rank.id(), 0)
    rank.nccl.CommCuDevice(comm, c.byref(device))
    return [code, device.value]


# ncclCommInitAll


def _init_all(rank: Rank, count: int, devices: list[int] | None) -> str:
    comms = (c.c_void_p * 8)()
    array = None if devices is None else (c.c_int * 8)(*devices)
    return rank.nccl.CommInitAll(comms, count, array)


@rule(
    "CommInitAll",
    "A negative number of devices and a NULL pointer for the handles are rejected",
    nccl=["invalidArgument"] * 2,
)
def init_all_arguments(rank: Rank) -> list[str]:
    return [_init_all(rank, -1, None), rank.nccl.CommInitAll(None, 1, None)]


@rule(
    "CommInitAll",
    "A nonexistent device is rejected",
    nccl={"2.18": ["unhandledCudaError"] * 2, "2.24": ["invalidArgument"] * 2},
)
def init_all_unknown_device(rank: Rank) -> list[str]:
    return [_init_all(rank, 1, [99]), _init_all(rank, 1, [-1])]


@rule("CommInitAll", "A duplicate device is rejected", nccl="invalidUsage", devices=2)
def init_all_twice(rank: Rank) -> str:
    return _init_all(rank, 2, [0, 0])


@rule("CommInitAll", "The current device does not change", nccl=["success", 0], devices=2)
def init_all_current(rank: Rank) -> list[Any]:
    return [_init_all(rank, 2, [1, 0]), rank.cuda.current()]


@rule(
    "CommInitAll",
    "In a group the handles are set immediately",
    nccl=["success", ["set", "set"], "success"],
    devices=2,
)
def init_all_in_group(rank: Rank) -> list[Any]:
    comms = (c.c_void_p * 2)()
    rank.nccl.GroupStart()
    code = rank.nccl.CommInitAll(comms, 2, None)
    return [code, ["set" if comm else "null" for comm in comms], rank.nccl.GroupEnd()]


# ncclCommInitRankScalable


@rule(
    "CommInitRankScalable",
    "The number of IDs must be between 1 and nranks",
    nccl=["invalidArgument"] * 3,
)
def init_scalable_ids(rank: Rank) -> list[str]:
    ids = (UniqueId * 2)(rank.id(), rank.id())
    comm = c.c_void_p()  # after an error NCCL reads the handle
    return [
        rank.nccl.CommInitRankScalable(c.byref(comm), 1, 0, count, ids, None)
        for count in (0, -1, 2)
    ]


@rule("CommInitRankScalable", "Two ranks can use two IDs", nccl=["success", "works"], ranks=2)
def init_scalable_two(rank: Rank) -> list[str]:
    comm, ids = rank.empty(), (UniqueId * 2)(rank.id(), rank.id())
    code = rank.nccl.CommInitRankScalable(c.byref(comm), 2, rank.rank, 2, ids, None)
    return [code, rank.works(comm)]
