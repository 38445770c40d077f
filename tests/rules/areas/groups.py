"""Groups, messages, and calls that wait for other ranks."""

from __future__ import annotations

import ctypes as c
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.rules.api import SimInfo
from tests.rules.rank import F32, Rank, handle
from tests.rules.rule import rule, stricter

# Waiting


@rule(
    "AllReduce",
    "Since 2.24 the first collective of a communicator waits for the calls of the other ranks",
    nccl={"2.18": "returns success", "2.24": "waits success"},
    ranks=2,
)
def first_collective_waits(rank: Rank) -> str:
    comm = rank.create()
    return rank.waits(lambda: rank.sum(comm))


@rule(
    "AllReduce",
    "A later collective does not wait for the calls of the other ranks",
    nccl="returns success",
    ranks=2,
)
def later_collective_waits(rank: Rank) -> str:
    comm = rank.connected()
    return rank.waits(lambda: rank.sum(comm))


@rule(
    "Broadcast",
    "A first collective of another kind does not wait again",
    nccl="returns success",
    ranks=2,
)
def other_collective_waits(rank: Rank) -> str:
    comm, stream, memory = rank.connected(), rank.cuda.stream(), rank.cuda.memory()
    return rank.waits(lambda: rank.nccl.Broadcast(memory, memory, 4, F32, 0, comm, stream))


def _message(rank: Rank, comm: c.c_void_p, stream: c.c_void_p, memory: c.c_void_p) -> str:
    call = rank.nccl.Recv if rank.rank else rank.nccl.Send
    return call(memory, 4, F32, rank.peer, comm, stream)


@rule(
    "Send",
    "The first message between two ranks waits for the peer's call",
    nccl="waits success",
    ranks=2,
)
def first_message_waits(rank: Rank) -> str:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    return rank.waits(lambda: _message(rank, comm, stream, memory))


@rule(
    "Send",
    "A later message between the same ranks does not wait for the peer's call",
    nccl="returns success",
    ranks=2,
)
def later_message_waits(rank: Rank) -> str:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    rank.need(_message(rank, comm, stream, memory))
    rank.cuda.finish(stream)
    return rank.waits(lambda: _message(rank, comm, stream, memory))


def _two(rank: Rank) -> Callable[[], tuple[list[str], list[c.c_void_p]]]:
    """Create two ranks of this thread.

    Returns:
        A function that calls ncclAllReduce for both, and returns its codes and the streams.
    """
    handles = (c.c_void_p * 2)()
    if rank.cuda.host:
        ids = rank.id()
        rank.nccl.GroupStart()
        for i in range(2):
            place = c.byref(handles, i * c.sizeof(c.c_void_p))
            rank.need(rank.nccl.CommInitRank(place, 2, ids, i))
        rank.need(rank.nccl.GroupEnd())
    else:
        rank.need(rank.nccl.CommInitAll(handles, 2, None))

    def start() -> tuple[list[str], list[c.c_void_p]]:
        codes, streams = [], []
        for device, comm in enumerate(handles):
            rank.cuda.use(0 if rank.cuda.host else device)
            code, stream = rank.start(c.c_void_p(comm))
            codes.append(code)
            streams.append(stream)
        return codes, streams

    return start


@rule(
    "GroupEnd",
    "A thread can issue a collective for two of its ranks in one group",
    nccl=["success", "success", "success", "done", "done"],
    devices=2,
)
def two_ranks_of_a_thread(rank: Rank) -> list[str]:
    start = _two(rank)
    rank.nccl.GroupStart()
    codes, streams = start()
    return [*codes, rank.nccl.GroupEnd(), *map(rank.cuda.finish, streams)]


@rule(
    "AllReduce",
    "Since 2.24 the first collective of two ranks of one thread never returns without a group",
    nccl={"2.18": ["success", "success", "done", "done"], "2.24": "hang"},
    devices=2,
    alone=True,
    seconds=4,
    host=stricter(["invalidUsage", "invalidUsage", "done", "done"], "the deadlock is reported"),
)
def two_ranks_without_group(rank: Rank) -> list[str]:
    codes, streams = _two(rank)()
    return [*codes, *map(rank.cuda.finish, streams)]


@rule(
    "AllReduce",
    "Ranks of one thread need no group once a group has connected them",
    nccl=["success", "success", "done", "done"],
    devices=2,
)
def two_ranks_without_group_later(rank: Rank) -> list[str]:
    start = _two(rank)
    rank.nccl.GroupStart()
    start()
    rank.need(rank.nccl.GroupEnd())
    codes, streams = start()
    return [*codes, *map(rank.cuda.finish, streams)]


@rule(
    "AllReduce",
    "Since 2.24 the first operation after the death of a peer never returns",
    nccl={"2.18": ["success", "success"], "2.24": "hang"},
    ranks=2,
    processes=True,
    seconds=4,
    host=stricter(["remoteError", "remoteError"], "the dead rank is reported"),
)
def first_operation_of_dead_peer(rank: Rank) -> list[str] | None:
    comm = rank.create()
    rank.meet()
    if rank.rank:
        rank.tell("end 1")
        os.kill(os.getpid(), signal.SIGKILL)
    rank.hear("end 1")
    return [rank.sum(comm), rank.state(comm)]


# Groups


@rule(
    "GroupEnd",
    "ncclGroupEnd without ncclGroupStart is rejected, and a subsequent empty group succeeds",
    nccl=["invalidUsage", "success", "success"],
)
def group_end_alone(rank: Rank) -> list[str]:
    return [rank.nccl.GroupEnd(), rank.nccl.GroupStart(), rank.nccl.GroupEnd()]


@rule(
    "GroupStart",
    "Groups nest; a surplus ncclGroupEnd is rejected",
    nccl=["success", "success", "success", "success", "success", "invalidUsage"],
)
def group_nested(rank: Rank) -> list[str]:
    comm = rank.create()
    codes = [rank.nccl.GroupStart(), rank.nccl.GroupStart(), rank.sum(comm)]
    return codes + [rank.nccl.GroupEnd() for _ in range(3)]


@rule(
    "GroupEnd",
    "A rejected operation fails ncclGroupEnd, and the next group succeeds",
    nccl=["invalidArgument", "success", "invalidArgument", "success", "success", "success"],
)
def group_refused_call(rank: Rank) -> list[str]:
    comm = rank.create()
    rank.nccl.GroupStart()
    codes = [rank.refused(comm), rank.sum(comm), rank.nccl.GroupEnd(), rank.state(comm)]
    rank.nccl.GroupStart()
    return [*codes, rank.sum(comm), rank.nccl.GroupEnd()]


@rule(
    "GroupEnd",
    "After a rejected operation in an inner group, the inner ncclGroupEnd succeeds and "
    "the outer one fails",
    nccl=["invalidArgument", "success", "invalidArgument", "works"],
)
def group_refused_call_inner(rank: Rank) -> list[str]:
    comm = rank.create()
    rank.nccl.GroupStart()
    rank.nccl.GroupStart()
    return [rank.refused(comm), rank.nccl.GroupEnd(), rank.nccl.GroupEnd(), rank.works(comm)]


@rule(
    "GroupEnd",
    "A group with a rejected call issues none of its operations",
    nccl=["success", "invalidArgument", "invalidArgument", "done"],
    ranks=2,
)
def group_refused_issues_nothing(rank: Rank) -> list[str] | None:
    comm = rank.connected()
    rank.meet()
    if rank.rank:
        return None
    rank.nccl.GroupStart()
    code, stream = rank.start(comm)
    return [code, rank.refused(comm), rank.nccl.GroupEnd(), rank.cuda.finish(stream, 2)]


@rule(
    "GroupEnd",
    "A rejected query in a group does not fail the group",
    nccl=["invalidArgument", "success"],
)
def group_refused_query(rank: Rank) -> list[str]:
    comm = rank.create()
    rank.nccl.GroupStart()
    return [rank.nccl.CommCount(comm, None), rank.nccl.GroupEnd()]


@rule(
    "GroupEnd",
    "A group may mix operations of a blocking and a non-blocking communicator of one rank",
    nccl=["success", "success", "success", "success", "success"],
)
def group_mixed_one_rank(rank: Rank) -> list[str]:
    one, two = rank.create(), rank.create(blocking=0)
    rank.nccl.GroupStart()
    codes = [rank.sum(one), rank.sum(two), rank.nccl.GroupEnd()]
    return [*codes, rank.settle(one), rank.settle(two)]


@rule(
    "GroupEnd",
    "With two ranks, a group that mixes blocking and non-blocking communicators is "
    "non-blocking since 2.24, and since 2.28 the blocking communicator stays in progress "
    "forever",
    nccl={
        "2.18": ["success", "success", "success", "success", "success"],
        "2.24": ["success", "success", "inProgress", "success", "success"],
        "2.28": ["success", "success", "inProgress", "inProgress", "success"],
    },
    ranks=2,
)
def group_mixed(rank: Rank) -> list[str]:
    one, two = rank.create(), rank.create(blocking=0)
    rank.nccl.GroupStart()
    codes = [rank.sum(one), rank.sum(two), rank.nccl.GroupEnd()]
    return [*codes, rank.settle(one, 1), rank.settle(two, 1)]


@rule(
    "GroupEnd",
    "A group cannot mix blocking and non-blocking creations: since 2.28 the second one is rejected",
    nccl={
        "2.18": "crash SIGSEGV",
        "2.24": "crash SIGABRT",
        "2.28": ["success", "invalidArgument", "invalidArgument", "set", "null"],
    },
    alone=True,
)
def group_mixed_creations(rank: Rank) -> list[str]:
    one, two, config = c.c_void_p(), c.c_void_p(), rank.config(blocking=0)
    ids = [rank.id(), rank.id()]
    rank.nccl.GroupStart()
    codes = [rank.nccl.CommInitRank(c.byref(one), 1, ids[0], 0)]
    codes.append(rank.nccl.CommInitRankConfig(c.byref(two), 1, ids[1], 0, c.byref(config)))
    codes.append(rank.nccl.GroupEnd())
    return [*codes, *("set" if comm.value else "null" for comm in (one, two))]


@rule(
    "GroupEnd",
    "A group may contain operations of one communicator on two streams",
    nccl=["success", "done", "done"],
    ranks=2,
)
def group_two_streams(rank: Rank) -> list[str]:
    comm = rank.create()
    rank.nccl.GroupStart()
    streams = [rank.start(comm)[1] for _ in range(2)]
    return [rank.nccl.GroupEnd(), *map(rank.cuda.finish, streams)]


def _in_group(
    name: str,
    function: str,
    call: Callable[[Rank, c.c_void_p], str],
    **options: Any,  # noqa: ANN401 - of rule()
) -> None:
    def probe(rank: Rank) -> list[str]:
        comm = rank.create()
        rank.nccl.GroupStart()
        return [call(rank, comm), rank.nccl.GroupEnd(), rank.nccl.GroupEnd()]

    text = f"nccl{function} in a group takes effect, and the group stays open"
    outcome = ["success", "success", "invalidUsage"]
    rule(function, text, outcome, name=f"in_group_{name}", **options)(probe)


_in_group("destroy", "CommDestroy", lambda rank, comm: rank.nccl.CommDestroy(comm))
_in_group("finalize", "CommFinalize", lambda rank, comm: rank.nccl.CommFinalize(comm))
_in_group("abort", "CommAbort", lambda rank, comm: rank.nccl.CommAbort(comm))
_in_group("revoke", "CommRevoke", lambda rank, comm: rank.nccl.CommRevoke(comm, 0))
_in_group("suspend", "CommSuspend", lambda rank, comm: rank.nccl.CommSuspend(comm, 1))
_in_group("register", "CommRegister", Rank.register)


@rule(
    "MemAlloc",
    "ncclMemAlloc in a group returns memory immediately",
    nccl=["success", "set", "success"],
)
def in_group_alloc(rank: Rank) -> list[str]:
    memory = rank.empty()
    rank.nccl.GroupStart()
    return [rank.nccl.MemAlloc(c.byref(memory), 4096), handle(memory), rank.nccl.GroupEnd()]


# Messages

_COUNTS = "the mismatch is reported; NCCL copies the smaller count"


@rule(
    "Send",
    "An unmatched message to the own rank is rejected and has no other effect",
    nccl=["invalidUsage", "invalidUsage", "success", "works"],
)
def message_to_oneself_alone(rank: Rank) -> list[str]:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    codes = [call(memory, 4, F32, 0, comm, stream) for call in (rank.nccl.Send, rank.nccl.Recv)]
    return [*codes, rank.state(comm), rank.works(comm)]


@rule(
    "Send",
    "The counts of a send and a receive of the own rank may differ",
    nccl=["success", "success", "success", "success"],
    double=stricter(["success", "success", "success", "invalidUsage"], _COUNTS),
    host=stricter(["success", "success", "success", "invalidUsage"], _COUNTS),
)
def message_to_oneself_counts(rank: Rank) -> list[str]:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    rank.nccl.GroupStart()
    codes = [
        rank.nccl.Send(memory, 8, F32, 0, comm, stream),
        rank.nccl.Recv(rank.cuda.memory(), 4, F32, 0, comm, stream),
    ]
    codes.append(rank.nccl.GroupEnd())
    rank.cuda.finish(stream, 2)
    return [*codes, rank.state(comm)]


@rule(
    "Send",
    "ncclGroupEnd rejects two sends to the own rank with only one receive",
    nccl=["invalidUsage", "success"],
)
def message_to_oneself_twice(rank: Rank) -> list[str]:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    rank.nccl.GroupStart()
    for _ in range(2):
        rank.nccl.Send(memory, 4, F32, 0, comm, stream)
    rank.nccl.Recv(rank.cuda.memory(), 4, F32, 0, comm, stream)
    return [rank.nccl.GroupEnd(), rank.state(comm)]


@rule(
    "Send",
    "In a group the order of sends and receives does not matter",
    nccl=["success", "done"],
    ranks=2,
)
def message_order(rank: Rank) -> list[str]:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    rank.nccl.GroupStart()
    for call in (rank.nccl.Recv, rank.nccl.Send)[:: -1 if rank.rank else 1]:
        rank.need(
            call(memory if rank.rank else rank.cuda.memory(), 4, F32, rank.peer, comm, stream)
        )
    return [rank.nccl.GroupEnd(), rank.cuda.finish(stream)]


# Simulation

_SIMULATION_MAGIC = 0x74685283


def _simulation(rank: Rank) -> SimInfo:
    return SimInfo(c.sizeof(SimInfo), _SIMULATION_MAGIC, rank.nccl.version, -1.0)


@rule(
    "GroupSimulateEnd",
    "ncclGroupSimulateEnd needs a group, which it ends; its output may be NULL",
    nccl=["invalidUsage", "success", "invalidUsage"],
)
def simulate_null(rank: Rank) -> list[str]:
    alone = rank.nccl.GroupSimulateEnd(c.byref(_simulation(rank)))
    rank.nccl.GroupStart()
    return [alone, rank.nccl.GroupSimulateEnd(None), rank.nccl.GroupEnd()]


@rule("GroupSimulateEnd", "An empty group has no estimate", nccl=["success", False])
def simulate_empty(rank: Rank) -> list[Any]:
    info = _simulation(rank)
    rank.nccl.GroupStart()
    return [rank.nccl.GroupSimulateEnd(c.byref(info)), info.estimatedTime > 0]


@rule(
    "GroupSimulateEnd",
    "Operations of a communicator of one rank have no estimate",
    nccl=["success", "success", False],
)
def simulate_one_rank(rank: Rank) -> list[Any]:
    comm, info = rank.create(), _simulation(rank)
    rank.nccl.GroupStart()
    code = rank.sum(comm)
    return [code, rank.nccl.GroupSimulateEnd(c.byref(info)), info.estimatedTime > 0]


@rule(
    "GroupSimulateEnd",
    "A collective has an estimate and is not issued",
    nccl=["success", True, "works"],
    ranks=2,
)
def simulate_collective(rank: Rank) -> list[Any]:
    comm, info = rank.create(), _simulation(rank)
    rank.nccl.GroupStart()
    rank.need(rank.sum(comm))
    code = rank.nccl.GroupSimulateEnd(c.byref(info))
    return [code, info.estimatedTime > 0, rank.works(comm)]


_KEPT = "NCCL keeps the messages of a simulated group for the next group"


@rule(
    "GroupSimulateEnd",
    "Messages have no estimate",
    nccl=["success", False],
    ranks=2,
    double=stricter(["invalidUsage", False], _KEPT),
    host=stricter(["invalidUsage", False], _KEPT),
)
def simulate_messages(rank: Rank) -> list[Any]:
    comm, stream, memory = rank.create(), rank.cuda.stream(), rank.cuda.memory()
    info = _simulation(rank)
    rank.nccl.GroupStart()
    rank.nccl.Send(memory, 4, F32, rank.peer, comm, stream)
    rank.nccl.Recv(rank.cuda.memory(), 4, F32, rank.peer, comm, stream)
    return [rank.nccl.GroupSimulateEnd(c.byref(info)), info.estimatedTime > 0]


@rule(
    "GroupSimulateEnd",
    "A rejected operation fails the simulation, and the group ends",
    nccl=["invalidArgument", "invalidUsage"],
)
def simulate_refused_call(rank: Rank) -> list[str]:
    comm, info = rank.create(), _simulation(rank)
    rank.nccl.GroupStart()
    rank.refused(comm)
    return [rank.nccl.GroupSimulateEnd(c.byref(info)), rank.nccl.GroupEnd()]


@rule(
    "GroupSimulateEnd",
    "An uninitialized struct is rejected, and the group ends",
    nccl=[["invalidArgument", "invalidUsage"]] * 3,
)
def simulate_struct(rank: Rank) -> list[list[str]]:
    found = []
    for size, magic in ((24, 1), (8, _SIMULATION_MAGIC), (0, 0)):
        info = SimInfo(size, magic, rank.nccl.version, -1.0)
        rank.nccl.GroupStart()
        found.append([rank.nccl.GroupSimulateEnd(c.byref(info)), rank.nccl.GroupEnd()])
    return found
