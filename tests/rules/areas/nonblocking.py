"""Non-blocking communicators: states, rejected calls, operations in progress."""

from __future__ import annotations

import ctypes as c
from typing import Any

from tests.rules.calls import CALLS, rules_of
from tests.rules.rank import F32, Rank, handle
from tests.rules.rule import rule, stricter


@rule(
    "CommInitRankConfig",
    "A non-blocking creation returns inProgress with the handle set, without waiting for its peers",
    nccl=["returns inProgress", "set", "success"],
    ranks=2,
)
def init_non_blocking(rank: Rank) -> list[str]:
    comm = rank.empty()
    unique_id, config = rank.id(), rank.config(blocking=0)
    code = rank.waits(
        lambda: rank.nccl.CommInitRankConfig(
            c.byref(comm), 2, unique_id, rank.rank, c.byref(config)
        )
    )
    return [code, handle(comm), rank.settle(comm)]


@rule(
    "CommInitRankConfig",
    "After a non-blocking creation in a group, ncclGroupEnd returns inProgress",
    nccl=["success", "inProgress", "success"],
    ranks=2,
)
def init_non_blocking_in_group(rank: Rank) -> list[str]:
    comm, unique_id, config = rank.empty(), rank.id(), rank.config(blocking=0)
    rank.nccl.GroupStart()
    code = rank.nccl.CommInitRankConfig(c.byref(comm), 2, unique_id, rank.rank, c.byref(config))
    return [code, rank.nccl.GroupEnd(), rank.settle(comm)]


@rule(
    "CommGetAsyncError",
    "An operation rejected by a blocking communicator leaves no error behind",
    nccl=["invalidArgument", "success", "works"],
)
def refused_call(rank: Rank) -> list[str]:
    comm = rank.create()
    return [rank.refused(comm), rank.state(comm), rank.works(comm)]


@rule(
    "CommGetAsyncError",
    "An operation rejected by a non-blocking communicator is its error permanently",
    nccl=["invalidArgument", "invalidArgument", "invalidArgument"],
    ranks=2,
)
def refused_call_non_blocking(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    return [rank.refused(comm), rank.state(comm), rank.works(comm)]


@rule(
    "GroupEnd",
    "A rejected operation in a group is the error of its non-blocking communicator",
    nccl=["invalidArgument", "invalidArgument", "invalidArgument", "invalidArgument"],
    ranks=2,
)
def refused_group_non_blocking(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    rank.nccl.GroupStart()
    code = rank.refused(comm)
    return [code, rank.nccl.GroupEnd(), rank.state(comm), rank.works(comm)]


@rule(
    "CommDestroy",
    "After a rejected call, finalize and destroy of a non-blocking communicator are "
    "rejected, and since 2.24 the rejected destroy leaves the thread in a group; abort "
    "succeeds",
    nccl={
        "2.18": ["invalidArgument", "invalidArgument", False, "success"],
        "2.24": ["invalidArgument", "invalidArgument", True, "success"],
    },
    ranks=2,
)
def end_after_refused_call(rank: Rank) -> list[Any]:
    comm = rank.create(blocking=0)
    rank.refused(comm)
    codes = [rank.nccl.CommFinalize(comm), rank.nccl.CommDestroy(comm)]
    opened = rank.in_group()
    if codes[1] == "success":
        return [*codes, opened]
    return [*codes, opened, rank.nccl.CommAbort(comm)]


@rule(
    "CommAbort",
    "ncclCommAbort of a non-blocking communicator with an error succeeds and leaves no group open",
    nccl=["success", False],
    ranks=2,
)
def abort_after_refused_call(rank: Rank) -> list[Any]:
    comm = rank.create(blocking=0)
    rank.refused(comm)
    return [rank.nccl.CommAbort(comm), rank.in_group()]


@rule(
    "CommSplit",
    "Since 2.24 a non-blocking communicator with an error cannot be split",
    nccl={
        "2.18": ["success", "success", "set"],
        "2.24": ["invalidArgument", "invalidArgument", "null"],
        "2.28": ["invalidArgument", "invalidArgument", "untouched"],
    },
    ranks=2,
)
def split_after_refused_call(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    rank.refused(comm)
    code, child = rank.split(comm)
    return [code, rank.settle(comm), handle(child)]


@rule(
    "CommRevoke",
    "ncclCommRevoke clears the error of a non-blocking communicator, which can then be split",
    nccl=["inProgress", "success", "success", "success", "set"],
    ranks=2,
)
def revoke_after_refused_call(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    rank.refused(comm)
    codes = [rank.nccl.CommRevoke(comm, 0), rank.settle(comm)]
    code, child = rank.split(comm)
    return [*codes, code, rank.settle(comm), handle(child)]


@rule(
    "AllReduce",
    "Since 2.24 every operation of a non-blocking communicator returns inProgress, not "
    "only the first",
    nccl={
        "2.18": ["success", "success", "success", "success", "done"],
        "2.24": ["inProgress", "success", "inProgress", "success", "done"],
    },
    ranks=2,
)
def operations_non_blocking(rank: Rank) -> list[str]:
    comm, stream, memory = rank.create(blocking=0), rank.cuda.stream(), rank.cuda.memory()
    codes = []
    for _ in range(2):
        codes.append(rank.nccl.AllReduce(memory, memory, 4, F32, 0, comm, stream))
        codes.append(rank.settle(comm))
    return [*codes, rank.cuda.finish(stream)]


@rule(
    "AllReduce",
    "An operation of a non-blocking communicator of one rank is complete when it returns",
    nccl=["success", "success"],
)
def operation_non_blocking_one_rank(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    return [rank.sum(comm), rank.settle(comm)]


@rule(
    "AllReduce",
    "Since 2.24 an operation issued while another operation of the non-blocking "
    "communicator is in progress is rejected, and the communicator has failed",
    nccl={
        "2.18": ["success", "success", "success"],
        "2.24": ["inProgress", "invalidArgument", "invalidArgument"],
    },
    ranks=2,
)
def operation_while_in_progress(rank: Rank) -> list[str] | None:
    comm = rank.create(blocking=0)
    rank.meet()
    if rank.rank == 0:
        codes = [rank.sum(comm), rank.sum(comm), rank.state(comm)]
        rank.tell("called")
        return codes
    rank.hear("called")
    rank.sum(comm)
    return None


@rule(
    "GroupEnd",
    "ncclGroupEnd of a non-blocking communicator's first messages returns inProgress, "
    "and since 2.24 also that of later ones",
    nccl={
        "2.18": ["success", "inProgress", "success", "success", "success", "success"],
        "2.24": ["success", "inProgress", "success", "success", "inProgress", "success"],
    },
    ranks=2,
)
def message_groups_non_blocking(rank: Rank) -> list[str]:
    comm, stream, memory = rank.create(blocking=0), rank.cuda.stream(), rank.cuda.memory()
    codes = []
    for _ in range(2):
        rank.nccl.GroupStart()
        codes.append(rank.nccl.Send(memory, 4, F32, rank.peer, comm, stream))
        rank.nccl.Recv(c.c_void_p(memory.value + 64), 4, F32, rank.peer, comm, stream)  # type: ignore[operator]
        codes += [rank.nccl.GroupEnd(), rank.settle(comm)]
    return codes


@rule(
    "CommFinalize",
    "ncclCommFinalize of a non-blocking communicator returns inProgress; ncclCommDestroy "
    "succeeds once it is complete",
    nccl=["inProgress", "success", "success"],
    ranks=2,
)
def finalize_non_blocking(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    return [rank.nccl.CommFinalize(comm), rank.settle(comm), rank.nccl.CommDestroy(comm)]


@rule(
    "CommDestroy",
    "ncclCommDestroy of a non-blocking communicator succeeds without ncclCommFinalize",
    nccl="success",
    ranks=2,
)
def destroy_non_blocking(rank: Rank) -> str:
    return rank.nccl.CommDestroy(rank.create(blocking=0))


_unready = rules_of(
    "unready",
    "A communicator in progress",
    Rank.unready,
    lambda rank, comm, code: [code, rank.state(comm), rank.in_group()],
)
_REFUSED = ["invalidArgument", "inProgress", False]
_POISONED = {
    "2.18": ["invalidUsage", "inProgress", False],
    "2.24": ["invalidArgument", "invalidArgument", False],
}
_unready(
    "operation",
    "rejects operations, which since 2.24 fail its creation",
    _POISONED,
)
_unready(
    "operation_in_group",
    "rejects operations in a group, which since 2.24 fail its creation",
    {
        "2.18": [["invalidUsage", "invalidUsage", "invalidUsage"], "inProgress", False],
        "2.24": [["success", "invalidArgument", "invalidArgument"], "invalidArgument", False],
    },
)
_unready(
    "finalize",
    "rejects ncclCommFinalize, which since 2.24 fails its creation",
    _POISONED,
)
for _name in ("count", "rank", "device"):
    _unready(_name, f"rejects nccl{CALLS[_name][0]}", _REFUSED)
_unready("redop", "rejects reduction operators, which do not affect it", _REFUSED)
_unready("register", "accepts ncclCommRegister", ["success", "inProgress", False])
_NOT_READY = stricter(
    _REFUSED,
    "NCCL's creation stays in progress forever: only an abort ends it, without a revoke",
)
_unready(
    "revoke",
    "accepts ncclCommRevoke, which returns inProgress",
    ["inProgress", "inProgress", False],
    alone=True,
    double=_NOT_READY,
    host=_NOT_READY,
)
_unready(
    "split",
    "cannot be split; 2.24 fails its creation",
    {
        "2.18": ["invalidUsage", "inProgress", False],
        "2.24": ["invalidArgument", "invalidArgument", False],
        "2.28": ["invalidArgument", "inProgress", False],
    },
)


@rule(
    "CommDestroy",
    "ncclCommDestroy of a communicator in progress is rejected, and since 2.24 leaves "
    "the thread in a group",
    nccl={"2.18": ["invalidArgument", False], "2.24": ["invalidArgument", True]},
)
def unready_destroy(rank: Rank) -> list[Any]:
    comm = rank.unready()
    return [rank.nccl.CommDestroy(comm), rank.in_group()]


@rule(
    "CommAbort",
    "ncclCommAbort of a communicator in progress succeeds and leaves no group open",
    nccl=["success", False],
)
def unready_abort(rank: Rank) -> list[Any]:
    comm = rank.unready()
    return [rank.nccl.CommAbort(comm), rank.in_group()]


@rule(
    "CommInitRankConfig",
    "NCCL_COMM_BLOCKING=0 overrides the configuration and makes a communicator non-blocking",
    nccl="inProgress",
    env={"NCCL_COMM_BLOCKING": "0"},
)
def blocking_by_environment(rank: Rank) -> str:
    return rank.init(c.c_void_p(), blocking=1)


@rule(
    "CommInitRankConfig",
    "NCCL_COMM_BLOCKING=0 makes a communicator without a configuration non-blocking",
    nccl="inProgress",
    source="read: init.cc:1999 (2.30.7)",
    env={"NCCL_COMM_BLOCKING": "0"},
)
def blocking_by_environment_without_configuration(rank: Rank) -> str:
    return rank.init(c.c_void_p())


@rule(
    "CommInitRankConfig",
    "NCCL_COMM_BLOCKING=1 overrides the configuration and makes a communicator blocking",
    nccl=["success", "success"],
    source="read: init.cc:1999 (2.30.7)",
    env={"NCCL_COMM_BLOCKING": "1"},
)
def blocking_again_by_environment(rank: Rank) -> list[str]:
    comm = rank.empty()
    return [rank.init(comm, blocking=0), rank.state(comm)]


@rule(
    "CommInitRank",
    "With NCCL_COMM_BLOCKING=0, ncclCommInitRank still waits for its peers and returns success",
    nccl=["waits success", "success"],
    source="read: group.cc:40 (2.30.7); the code was measured for one rank",
    ranks=2,
    env={"NCCL_COMM_BLOCKING": "0"},
)
def init_rank_by_environment(rank: Rank) -> list[str]:
    comm, unique_id = rank.empty(), rank.id()
    code = rank.waits(lambda: rank.nccl.CommInitRank(c.byref(comm), 2, unique_id, rank.rank))
    return [code, rank.state(comm)]


@rule(
    "CommInitRank",
    "With NCCL_COMM_BLOCKING=0, ncclGroupEnd after ncclCommInitRank returns inProgress",
    nccl=["success", "inProgress", "success"],
    source="read: init.cc:1999, group.cc:826 (2.30.7)",
    ranks=2,
    env={"NCCL_COMM_BLOCKING": "0"},
)
def init_rank_in_group_by_environment(rank: Rank) -> list[str]:
    comm, unique_id = rank.empty(), rank.id()
    rank.nccl.GroupStart()
    code = rank.nccl.CommInitRank(c.byref(comm), 2, unique_id, rank.rank)
    return [code, rank.nccl.GroupEnd(), rank.settle(comm)]


@rule(
    "CommInitAll",
    "With NCCL_COMM_BLOCKING=0, ncclCommInitAll returns inProgress and sets the handle",
    nccl=["inProgress", "set", "success"],
    source="read: init.cc:2633, group.cc:857 (2.30.7)",
    env={"NCCL_COMM_BLOCKING": "0"},
)
def init_all_by_environment(rank: Rank) -> list[str]:
    comm = rank.empty()
    code = rank.nccl.CommInitAll(c.byref(comm), 1, None)
    return [code, handle(comm), rank.settle(comm)]


@rule(
    "CommInitAll",
    "With NCCL_COMM_BLOCKING=0, ncclGroupEnd after ncclCommInitAll returns inProgress",
    nccl=["success", "inProgress", "success", "success"],
    source="read: init.cc:2633, group.cc:857 (2.30.7)",
    devices=2,
    env={"NCCL_COMM_BLOCKING": "0"},
)
def init_all_in_group_by_environment(rank: Rank) -> list[str]:
    comms = (c.c_void_p * 2)()
    rank.nccl.GroupStart()
    codes = [rank.nccl.CommInitAll(comms, 2, None), rank.nccl.GroupEnd()]
    return codes + [rank.settle(c.c_void_p(comm)) for comm in comms]


@rule(
    "CommAbort",
    "ncclCommAbort of a non-blocking communicator ends its pending operation",
    nccl={
        "2.18": ["success", "success", "pending", "success", "done"],
        "2.24": ["inProgress", "success", "pending", "success", "done"],
    },
    ranks=2,
    host=stricter(
        ["inProgress", "success", "pending", "success", "error"],
        "aborted work fails its stream",
    ),
)
def abort_ends_operation(rank: Rank) -> list[str] | None:
    comm = rank.connected(blocking=0)
    rank.meet()
    if rank.rank:
        rank.hear("aborted")
        return None
    code, stream = rank.start(comm)
    codes = [code, rank.settle(comm), rank.cuda.finish(stream, 0.3)]
    codes += [rank.nccl.CommAbort(comm), rank.cuda.finish(stream)]
    rank.tell("aborted")
    return codes
