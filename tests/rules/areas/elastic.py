"""Revoked and suspended communicators."""

from __future__ import annotations

import ctypes as c
import threading
from typing import Any

from tests.rules.calls import rules_of
from tests.rules.rank import F32, SUM, Rank, handle
from tests.rules.rule import differs, rule, stricter

_LOSS = "hostnccl reports a lost operation on its stream"


def _revoke(rank: Rank) -> c.c_void_p:
    comm = rank.connected()
    rank.meet()
    rank.need(rank.nccl.CommRevoke(comm, 0))
    rank.meet()
    return comm


_revoked = rules_of("revoked", "A revoked communicator", _revoke, ranks=2, first=22807)


def _split_revoked(rank: Rank, comm: c.c_void_p) -> list[str]:
    code, child = rank.split(comm)
    found = [code, handle(child), rank.works(child)]
    return [*found, rank.sum(comm), rank.nccl.CommRevoke(comm, 0)]


_revoked("state", "has no error", "success")
_revoked("operation", "rejects operations", "invalidUsage")
_revoked("operation_one_rank", "of one rank rejects operations", "invalidUsage", ranks=1)
_revoked(
    "operation_in_group",
    "rejects operations in a group",
    ["success", "invalidUsage", "invalidUsage"],
)
_revoked("message", "rejects sends", "invalidUsage")
_revoked("revoke", "cannot be revoked again", "invalidArgument")
_revoked("finalize", "cannot be finalized", "invalidArgument")
_revoked("destroy", "can be destroyed", "success")
_revoked("abort", "can be aborted", "success")
_revoked("count", "still reports its size", "success")
_revoked("redop", "accepts reduction operators", "success")
_revoked("register", "accepts ncclCommRegister", "success")
_revoked("simulate", "rejects simulated operations", ["invalidUsage", "invalidUsage"])
_revoked(
    "split",
    "can be split and stays revoked",
    ["success", "set", "works", "invalidUsage", "invalidArgument"],
    _split_revoked,
)


@rule(
    "CommShrink",
    "A revoked communicator can be shrunk",
    nccl=["success", "works"],
    ranks=3,
    first=22807,
)
def revoked_shrink(rank: Rank) -> list[str] | None:
    comm, child, excluded = _revoke(rank), rank.empty(), (c.c_int * 1)(2)
    if rank.rank == 2:
        return None
    code = rank.nccl.CommShrink(comm, excluded, 1, c.byref(child), None, 0)
    return [code, rank.works(child)]


@rule(
    "CommRevoke",
    "Flags other than 0 are rejected; revoking NULL succeeds",
    nccl=["invalidArgument", "invalidArgument", "success", "works"],
)
def revoke_arguments(rank: Rank) -> list[str]:
    comm = rank.create()
    codes = [rank.nccl.CommRevoke(comm, 1), rank.nccl.CommRevoke(comm, -1)]
    return [*codes, rank.nccl.CommRevoke(None, 0), rank.works(comm)]


@rule(
    "CommRevoke",
    "ncclCommRevoke does not wait for the other ranks",
    nccl="returns success",
    ranks=2,
)
def revoke_waits(rank: Rank) -> str:
    comm = rank.connected()
    return rank.waits(lambda: rank.nccl.CommRevoke(comm, 0))


@rule(
    "CommDestroy",
    "ncclCommDestroy after a revoke does not wait for ranks of other processes",
    nccl="returns success",
    ranks=2,
    processes=True,
    first=22807,
)
def revoke_destroy_waits(rank: Rank) -> str:
    comm = _revoke(rank)
    return rank.waits(lambda: rank.nccl.CommDestroy(comm))


@rule(
    "CommRevoke",
    "A rank that has not revoked is not notified: its operation is accepted and stays pending",
    nccl=["success", "success", "pending"],
    host=differs(["success", "success", "error"], _LOSS),
    ranks=2,
)
def revoke_of_peer(rank: Rank) -> list[str] | None:
    comm = rank.connected()
    rank.meet()
    if rank.rank == 0:
        rank.need(rank.nccl.CommRevoke(comm, 0))
        rank.tell("revoked")
        rank.hear("seen")
        return None
    rank.hear("revoked")
    state = rank.state(comm)
    code, stream = rank.start(comm)
    found = [state, code, rank.cuda.finish(stream, 2)]
    rank.tell("seen")
    return found


@rule(
    "CommRevoke",
    "ncclCommRevoke ends the pending operations of the calling rank",
    nccl=["pending", "success", "done"],
    host=differs(["pending", "success", "error"], _LOSS),
    ranks=2,
    source="measured; kernels were emulated, the flag that they read is NCCL's",
)
def revoke_ends_operation(rank: Rank) -> list[str] | None:
    comm = rank.connected()
    rank.meet()
    if rank.rank:
        rank.hear("revoked")
        return None
    code, stream = rank.start(comm)
    rank.need(code)
    found = [rank.cuda.finish(stream, 0.3), rank.nccl.CommRevoke(comm, 0)]
    found.append(rank.cuda.finish(stream))
    rank.tell("revoked")
    return found


@rule(
    "CommRevoke",
    "ncclCommRevoke waits for work queued on the streams before the communicator's operations",
    nccl=[False, "success", True],
    host=differs([True, "success", True], "operations on CPUs can end while they are queued"),
    ranks=2,
    source="read: init.cc:2942 (2.30.7)",
    alone=True,
)
def revoke_waits_for_streams(rank: Rank) -> list[Any] | None:
    comms = [rank.connected(), rank.connected()]
    stream, memory = rank.cuda.stream(), rank.cuda.memory()
    rank.meet()
    if rank.rank:
        rank.hear("revoked")
        return None
    for comm in comms:
        rank.need(rank.nccl.AllReduce(memory, memory, 4, F32, SUM, comm, stream))
    returned = threading.Event()

    def revoke() -> None:
        rank.cuda.use(rank.device)
        rank.nccl.CommRevoke(comms[1], 0)
        returned.set()

    threading.Thread(target=revoke, daemon=True).start()
    found: list[Any] = [returned.wait(0.5), rank.nccl.CommRevoke(comms[0], 0)]
    found.append(returned.wait(8))
    rank.tell("revoked")
    return found


@rule(
    "CommRevoke",
    "Revoking a non-blocking communicator returns inProgress, and a subsequent "
    "ncclCommDestroy succeeds",
    nccl=["inProgress", "success", "success"],
    ranks=2,
)
def revoke_non_blocking(rank: Rank) -> list[str]:
    comm = rank.connected(blocking=0)
    rank.meet()
    return [rank.nccl.CommRevoke(comm, 0), rank.settle(comm), rank.nccl.CommDestroy(comm)]


# Suspended communicators


def _suspend(rank: Rank) -> c.c_void_p:
    comm = rank.connected()
    rank.need(rank.nccl.CommSuspend(comm, 1))
    rank.meet()
    return comm


_suspended = rules_of("suspended", "A suspended communicator", _suspend, ranks=2, first=22907)
_UNMAPPED = stricter("invalidUsage", "the kernel would use memory that is not mapped")
_suspended("suspend", "cannot be suspended again", "invalidUsage")
_suspended(
    "operation",
    "accepts operations, whose kernels use unmapped memory",
    "success",
    source="measured; the kernel was not run",
    double=_UNMAPPED,
    host=_UNMAPPED,
)
_suspended("split", "can be split", "success")
_suspended("state", "has no error", "success")
_suspended("count", "still reports its size", "success")
_suspended("register", "accepts ncclCommRegister", "success")
for _name in ("Finalize", "Destroy", "Abort"):
    _suspended(_name.lower(), f"accepts nccl{_name}", "success")
_suspended("revoke", "can be revoked", "success")


@rule(
    "CommSuspend",
    "Only the flag NCCL_SUSPEND_MEM has an effect: without it nothing happens, and no "
    "flag is rejected",
    nccl=["success", "success", "success", "invalidUsage"],
)
def suspend_flags(rank: Rank) -> list[str]:
    comm = rank.create()
    return [rank.nccl.CommSuspend(comm, flags) for flags in (0, 2, 3, -1)]


@rule(
    "CommSuspend",
    "NULL cannot be suspended or resumed",
    nccl=["invalidArgument", "invalidArgument"],
)
def suspend_null(rank: Rank) -> list[str]:
    return [rank.nccl.CommSuspend(None, 1), rank.nccl.CommResume(None)]


@rule(
    "CommResume",
    "A communicator works after ncclCommSuspend and ncclCommResume",
    nccl=["success", "success", "works"],
    ranks=2,
)
def suspend_and_resume(rank: Rank) -> list[str]:
    comm = rank.connected()
    return [rank.nccl.CommSuspend(comm, 1), rank.nccl.CommResume(comm), rank.works(comm)]


@rule(
    "CommResume",
    "Resuming a communicator that is not suspended is rejected",
    nccl=["invalidUsage", "works"],
)
def resume_alone(rank: Rank) -> list[str]:
    comm = rank.create()
    return [rank.nccl.CommResume(comm), rank.works(comm)]


@rule("CommSuspend", "ncclCommSuspend waits for the other ranks", nccl="waits success", ranks=2)
def suspend_waits(rank: Rank) -> str:
    comm = rank.connected()
    return rank.waits(lambda: rank.nccl.CommSuspend(comm, 1))


@rule("CommResume", "ncclCommResume waits for the other ranks", nccl="waits success", ranks=2)
def resume_waits(rank: Rank) -> str:
    comm = rank.connected()
    rank.need(rank.nccl.CommSuspend(comm, 1))
    return rank.waits(lambda: rank.nccl.CommResume(comm))


_AGREE = stricter(
    "invalidUsage", "ranks agree on a suspension over the communicator, whose operations have ended"
)


@rule(
    "CommSuspend",
    "A revoked communicator can be suspended",
    nccl="success",
    ranks=2,
    double=_AGREE,
    host=_AGREE,
)
def suspend_revoked(rank: Rank) -> str:
    return rank.nccl.CommSuspend(_revoke(rank), 1)
