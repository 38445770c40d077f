"""Finalize, destroy and abort: valid orders, calls on a finalized communicator, waiting."""

from __future__ import annotations

import ctypes as c
import threading
from typing import Any

from tests.rules.calls import rules_of
from tests.rules.rank import Rank
from tests.rules.rule import differs, rule, stricter

for _name in ("CommFinalize", "CommDestroy", "CommAbort"):

    def _null(rank: Rank, name: str = _name) -> str:
        code: str = getattr(rank.nccl, name)(None)
        return code

    rule(_name, f"nccl{_name} of NULL succeeds", "success", name=f"null_{_name}")(_null)


def _order(name: str, text: str, calls: list[str], nccl: list[str], ranks: int = 1) -> None:
    def probe(rank: Rank) -> list[str]:
        comm = rank.connected()
        return [getattr(rank.nccl, call)(comm) for call in calls]

    rule(calls[0], text, nccl, name=f"end_{name}", ranks=ranks)(probe)


_order(
    "destroy", "ncclCommDestroy without ncclCommFinalize succeeds", ["CommDestroy"], ["success"], 2
)
_order(
    "finalize_abort",
    "ncclCommAbort after ncclCommFinalize succeeds",
    ["CommFinalize", "CommAbort"],
    ["success", "success"],
)
_order(
    "finalize_twice",
    "A second ncclCommFinalize is rejected, and ncclCommDestroy succeeds",
    ["CommFinalize", "CommFinalize", "CommDestroy"],
    ["success", "invalidArgument", "success"],
    2,
)


@rule(
    "CommDestroy",
    "ncclCommDestroy does not depend on the current device and does not change it",
    nccl=["success", True],
    ranks=2,
    devices=2,
)
def destroy_on_other_device(rank: Rank) -> list[Any]:
    comm = rank.create()
    rank.cuda.use(rank.peer)
    return [rank.nccl.CommDestroy(comm), rank.cuda.current() == rank.peer]


def _finalize(rank: Rank) -> c.c_void_p:
    comm = rank.create()
    rank.need(rank.nccl.CommFinalize(comm))
    return comm


_finalized = rules_of(
    "finalized",
    "A finalized communicator",
    _finalize,
    lambda rank, comm, code: [code, rank.state(comm)],
)
_ACCEPTED = ["success", "success"]
_REFUSED = ["invalidArgument", "success"]
_LAST = "according to the documentation a finalized communicator can only be destroyed"
_ENDED = stricter(["invalidUsage", "success"], _LAST)
_ENDED_IN_GROUP = stricter([["success", "invalidUsage", "invalidUsage"], "success"], _LAST)
_finalized("operation", "accepts operations", _ACCEPTED, double=_ENDED, host=_ENDED)
_finalized(
    "operation_in_group",
    "accepts operations in a group",
    [["success", "success", "success"], "success"],
    double=_ENDED_IN_GROUP,
    host=_ENDED_IN_GROUP,
)
_finalized(
    "operation_works",
    "of two ranks computes correct results",
    ["works", "success"],
    ranks=2,
    devices=2,
    source="measured; with ranks that are connected by sockets it never ends (a GPU, 2.28.9)",
    double=_ENDED,
    host=_ENDED,
)
_finalized("split", "can be split", _ACCEPTED, ranks=2, double=_ENDED, host=_ENDED)
_finalized("count", "still reports its size", _ACCEPTED)
_finalized("redop", "accepts reduction operators", _ACCEPTED)
_finalized("register", "accepts ncclCommRegister", _ACCEPTED)
_finalized("revoke", "cannot be revoked", _REFUSED)
_finalized("suspend", "can be suspended", _ACCEPTED, double=_ENDED, host=_ENDED)
_finalized("memory", "has memory statistics", _ACCEPTED)


def _waits(function: str, connected: bool, processes: bool) -> None:
    def probe(rank: Rank) -> str:
        comm = rank.connected() if connected else rank.create()
        return rank.waits(lambda: getattr(rank.nccl, function)(comm))

    how = "processes" if processes else "threads"
    when = "after an operation" if connected else "without operations"
    text = f"nccl{function} does not wait for the other rank's call ({how}, {when})"
    name = f"waits_{function}_{how}_{'connected' if connected else 'new'}"
    rule(function, text, "returns success", name=name, ranks=2, processes=processes)(probe)


for _name in ("CommFinalize", "CommDestroy", "CommAbort"):
    _waits(_name, False, False)
    _waits(_name, True, False)
    _waits(_name, False, True)
_waits("CommFinalize", True, True)
_waits("CommAbort", True, True)


@rule(
    "CommDestroy",
    "Since 2.24 ncclCommDestroy after an operation waits for the ranks of other processes",
    nccl={"2.18": "returns success", "2.24": "waits success"},
    ranks=2,
    processes=True,
    devices=2,
    source="measured; the transport decides which ranks are connected",
    host=differs("returns success", "an end of hostnccl needs no other rank"),
)
def waits_destroy_processes_connected(rank: Rank) -> str:
    comm = rank.connected()
    return rank.waits(lambda: rank.nccl.CommDestroy(comm))


@rule(
    "CommDestroy",
    "Once all ranks have finalized, ncclCommDestroy does not wait",
    nccl="returns success",
    ranks=2,
    processes=True,
)
def waits_destroy_finalized(rank: Rank) -> str:
    comm = rank.connected()
    rank.need(rank.nccl.CommFinalize(comm))
    return rank.waits(lambda: rank.nccl.CommDestroy(comm))


@rule(
    "CommDestroy",
    "ncclCommDestroy on one thread does not wait for ncclCommAbort on another",
    nccl="returns success",
    ranks=2,
)
def waits_destroy_and_abort(rank: Rank) -> str:
    comm = rank.connected()
    call = rank.nccl.CommAbort if rank.rank else rank.nccl.CommDestroy
    return rank.waits(lambda: call(comm))


@rule(
    "CommFinalize",
    "ncclCommFinalize waits for the pending operations of the calling rank",
    nccl=[False, "pending", True],
    ranks=2,
    alone=True,
)
def finalize_waits_for_operation(rank: Rank) -> list[Any] | None:
    comm = rank.connected()
    rank.meet()
    if rank.rank:
        rank.hear("go")
        rank.sum(comm)
        rank.nccl.CommFinalize(comm)
        return None
    code, stream = rank.start(comm)
    rank.need(code)
    returned = threading.Event()

    def finalize() -> None:
        rank.cuda.use(rank.device)
        rank.nccl.CommFinalize(comm)
        returned.set()

    threading.Thread(target=finalize, daemon=True).start()
    found: list[Any] = [returned.wait(0.5), rank.cuda.finish(stream, 0.1)]
    rank.tell("go")
    return [*found, returned.wait(8)]


@rule(
    "CommDestroy",
    "Since 2.28 ncclCommDestroy of a communicator whose creation failed is rejected and "
    "leaves the thread in a group",
    nccl={
        "2.18": ["invalidUsage", "success", False],
        "2.28": ["invalidUsage", "invalidUsage", True],
    },
    ranks=2,
    devices=2,
)
def destroy_failed_creation(rank: Rank) -> list[Any]:
    rank.cuda.use(0)
    comm = c.c_void_p()
    rank.init(comm, blocking=0)
    return [rank.settle(comm), rank.nccl.CommDestroy(comm), rank.in_group()]


@rule(
    "CommInitRankConfig",
    "Two ranks on one GPU fail a non-blocking creation with invalidUsage; ncclCommAbort succeeds",
    nccl=["inProgress", "invalidUsage", "success"],
    ranks=2,
    devices=2,
)
def abort_failed_creation(rank: Rank) -> list[str]:
    rank.cuda.use(0)
    comm = c.c_void_p()
    return [rank.init(comm, blocking=0), rank.settle(comm), rank.nccl.CommAbort(comm)]
