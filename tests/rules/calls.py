"""Rules of calls on a communicator in some state: in progress, finalized, revoked, suspended."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from typing import Any

from tests.rules.rank import F32, Rank
from tests.rules.rule import rule

__all__ = ["CALLS", "rules_of"]

Call = Callable[[Rank, c.c_void_p], Any]


def _simulate(rank: Rank, comm: c.c_void_p) -> list[str]:
    rank.nccl.GroupStart()
    return [rank.sum(comm), rank.nccl.GroupSimulateEnd(None)]


# The nccl.h function, and the call, which returns its code or several.
CALLS: dict[str, tuple[str, Call]] = {
    "operation": ("AllReduce", lambda rank, comm: rank.sum(comm)),
    "operation_in_group": (
        "AllReduce",
        lambda rank, comm: [rank.nccl.GroupStart(), rank.sum(comm), rank.nccl.GroupEnd()],
    ),
    "operation_works": ("AllReduce", lambda rank, comm: rank.works(comm)),
    "message": (
        "Send",
        lambda rank, comm: rank.nccl.Send(
            rank.cuda.memory(), 4, F32, rank.peer, comm, rank.cuda.stream()
        ),
    ),
    "simulate": ("GroupSimulateEnd", _simulate),
    "state": ("CommGetAsyncError", lambda rank, comm: rank.state(comm)),
    "count": ("CommCount", Rank.count),
    "rank": ("CommUserRank", lambda rank, comm: rank.nccl.CommUserRank(comm, c.byref(c.c_int()))),
    "device": ("CommCuDevice", lambda rank, comm: rank.nccl.CommCuDevice(comm, c.byref(c.c_int()))),
    "memory": (
        "CommMemStats",
        lambda rank, comm: rank.nccl.CommMemStats(comm, 0, c.byref(c.c_uint64())),
    ),
    "redop": ("RedOpCreatePreMulSum", Rank.make_operator),
    "register": ("CommRegister", Rank.register),
    "split": ("CommSplit", lambda rank, comm: rank.split(comm)[0]),
    "suspend": ("CommSuspend", lambda rank, comm: rank.nccl.CommSuspend(comm, 1)),
    "revoke": ("CommRevoke", lambda rank, comm: rank.nccl.CommRevoke(comm, 0)),
    "finalize": ("CommFinalize", lambda rank, comm: rank.nccl.CommFinalize(comm)),
    "destroy": ("CommDestroy", lambda rank, comm: rank.nccl.CommDestroy(comm)),
    "abort": ("CommAbort", lambda rank, comm: rank.nccl.CommAbort(comm)),
}


def rules_of(
    state: str,
    text: str,
    enter: Callable[[Rank], c.c_void_p],
    outcome: Callable[[Rank, c.c_void_p, Any], Any] = lambda rank, comm, code: code,
    **common: Any,  # noqa: ANN401 - of rule()
) -> Callable[..., None]:
    """Return a function that registers the rule of a call on a communicator in some state.

    Its arguments are a name in CALLS, the rest of the text, NCCL's outcomes, optionally another
    call, and options of rule().

    Args:
        state: the first word of the rules' names.
        text: the beginning of their texts.
        enter: creates the communicator.
        outcome: makes the outcome from the call's code, or codes.
        **common: options of all rules.
    """

    def register(
        name: str,
        rest: str,
        nccl: Any,  # noqa: ANN401 - outcomes
        other: Call | None = None,
        **options: Any,  # noqa: ANN401 - of rule()
    ) -> None:
        function, call = CALLS[name.removesuffix("_one_rank")]

        def probe(rank: Rank) -> Any:  # noqa: ANN401 - an outcome
            comm = enter(rank)
            return outcome(rank, comm, (other or call)(rank, comm))

        options = {**common, **options, "name": f"{state}_{name}"}
        rule(function, f"{text} {rest}", nccl, **options)(probe)

    return register
