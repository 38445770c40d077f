"""The ranks of a communicator compare what they are about to call, through a store.

Of collectives each rank sets ``pynccl/check/COMMUNICATOR/TURN/RANK`` and waits for those of the
others. There are two turns: a rank sets the key of a turn again when all have set the other one,
and so have read it.

Of messages each rank sets ``pynccl/check/COMMUNICATOR/SOURCE-DESTINATION/send`` or ``.../recv`` to
the last ones, and compares with those of the other rank. It does not wait: the rank that comes
second finds the difference.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any, NamedTuple

from pynccl.flight.merged import ranks_text
from pynccl.store import Store, joined_key

__all__ = ["Call", "Failure", "Rank", "differences", "exchange"]

_SHORTEST, _LONGEST = 0.0002, 0.005  # seconds between two looks
_MESSAGES = 64  # between two ranks in a direction, the last ones

# The rank, the text of the error, and where ranks did not come, these.
Failure = tuple[int, str, "list[int] | None"]


class Call(NamedTuple):
    """What a rank is about to call.

    Attributes:
        number: of the collective.
        text: it, with its arguments.
        before: those since the last comparison, with their numbers.
        fingerprint: of all before.
    """

    number: int
    text: str
    before: list[tuple[int, str]]
    fingerprint: int


class Rank(NamedTuple):
    """A rank of a communicator.

    Attributes:
        store: common to the ranks.
        comm: the communicator's id.
        joined: the id that ranks which have joined it have, where this one knows it; else None.
        has_joined: whether this is one of them.
        rank: of the communicator.
        nranks: of the communicator.
        limit: for how long it waits, in seconds.
    """

    store: Store
    comm: str
    joined: str | None
    has_joined: bool
    rank: int
    nranks: int
    limit: float


_known: dict[str, str] = {}  # the common ids of the communicators that ranks have joined
_rounds: dict[tuple[str, int], int] = defaultdict(int)  # by communicator and rank
_called: dict[str, dict[int, str]] = defaultdict(dict)  # by key of messages: by number


def exchange(collectives: list[tuple[Any, ...]], messages: list[tuple[Any, ...]]) -> Failure | None:
    """Compare what the ranks of this thread are about to call with what the others are.

    Args:
        collectives: of communicators: a Rank, and the values of a Call.
        messages: a Rank, whether it sends, the peer, the number of the message, dtype and count.

    Returns:
        None where all are equal.
    """
    return _compare_messages(
        [_Message(Rank(*rank), *message) for rank, *message in messages]
    ) or _compare_collectives([(Rank(*rank), Call(*call)) for rank, *call in collectives])


def _common_id(one: Rank, until: float) -> str:
    """The id that all ranks of a communicator know; empty where it is not known in time."""
    if one.joined is not None and one.joined not in _known:
        _known[one.joined] = one.comm
        one.store.set(joined_key(one.joined), one.comm)
    if not one.has_joined:
        return one.comm
    if one.comm not in _known:
        key = joined_key(one.comm)
        while not one.store.check([key]):
            if time.monotonic() > until:
                return ""
            time.sleep(_LONGEST)
        _known[one.comm] = one.store.get(key).decode()
    return _known[one.comm]


class _Message(NamedTuple):
    one: Rank
    sends: bool
    peer: int
    number: int
    text: str

    @property
    def own(self) -> str:
        return "send" if self.sends else "recv"

    @property
    def other(self) -> str:
        return "recv" if self.sends else "send"

    @property
    def ranks(self) -> tuple[int, int]:
        """The source and the destination."""
        return (self.one.rank, self.peer) if self.sends else (self.peer, self.one.rank)

    def key(self, comm: str, call: str) -> str:
        source, destination = self.ranks
        return f"pynccl/check/{comm}/{source}-{destination}/{call}"


def _compare_messages(messages: list[_Message]) -> Failure | None:
    set_ones = []
    for message in messages:
        comm = _common_id(message.one, until=0)
        if not comm:  # the other ranks have not compared anything yet
            continue
        key = message.key(comm, message.own)
        called = _called[key]
        called[message.number] = message.text
        called.pop(message.number - _MESSAGES, None)
        message.one.store.set(key, json.dumps(list(called.items())))
        set_ones.append((message, message.key(comm, message.other)))
    for message, key in set_ones:  # one of the two ranks finds what the other has set
        store = message.one.store
        known = dict(json.loads(store.get(key))) if store.check([key]) else {}
        others = known.get(message.number, message.text)
        if others != message.text:
            source, destination = message.ranks
            rank = message.one.rank
            text = (
                f"check on rank {rank}: message #{message.number} from rank {source} to rank "
                f"{destination}: this rank calls {message.own}({message.text}), rank "
                f"{message.peer} {message.other}({others}); this rank has issued nothing"
            )
            return rank, text, None
    return None


def _compare_collectives(calls: list[tuple[Rank, Call]]) -> Failure | None:
    untils = [time.monotonic() + one.limit for one, _ in calls]
    named = [
        one._replace(comm=_common_id(one, until))
        for (one, _), until in zip(calls, untils, strict=True)
    ]
    for one, (_, call) in zip(named, calls, strict=True):
        _rounds[one.comm, one.rank] += 1
        one.store.set(_key(one, one.rank), json.dumps([_rounds[one.comm, one.rank], *call]))
    for one, (_, call), until in zip(named, calls, untils, strict=True):
        known, missing = _gather(one, call, until)
        if missing:
            text = (
                f"check: {ranks_text(missing)} did not come within {one.limit:g} s to the "
                f"comparison of #{call.number} {call.text}"
            )
            return one.rank, f"{text} on rank {one.rank}", missing
        if text := differences(known):
            return one.rank, f"check on rank {one.rank}: {text}; nothing was sent", None
    return None


def _key(one: Rank, rank: int) -> str:
    return f"pynccl/check/{one.comm}/{_rounds[one.comm, one.rank] % 2}/{rank}"


def _gather(one: Rank, own: Call, until: float) -> tuple[dict[int, Call], list[int]]:
    """What all ranks call, and those that have not said so in time."""
    own_round = _rounds[one.comm, one.rank]
    calls, pause = {one.rank: own}, _SHORTEST
    while True:
        for rank in range(one.nranks):
            if rank in calls or not one.store.check([_key(one, rank)]):
                continue
            its_round, *call = json.loads(one.store.get(_key(one, rank)))
            if its_round == own_round:
                calls[rank] = Call(*call)
        missing = [rank for rank in range(one.nranks) if rank not in calls]
        if not missing or time.monotonic() > until:
            return calls, missing
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def differences(calls: dict[int, Call]) -> str:
    """How the calls of ranks differ, in words; empty where they are equal."""
    if len({(call.number, call.fingerprint, call.text) for call in calls.values()}) == 1:
        return ""
    by_rank = {rank: {**dict(call.before), call.number: call.text} for rank, call in calls.items()}
    common = set.intersection(*(set(known) for known in by_rank.values()))
    for number in sorted(common):
        texts = {rank: known[number] for rank, known in by_rank.items()}
        if len(set(texts.values())) > 1:
            return f"the ranks call different collectives as #{number}: {_by_text(texts)}"
    texts = {rank: f"#{call.number} {call.text}" for rank, call in calls.items()}
    if len(set(texts.values())) > 1:
        return f"the ranks have called different numbers of collectives: {_by_text(texts)}"
    prints = {rank: f"{call.fingerprint:016x}" for rank, call in calls.items()}
    return (
        f"the ranks have called different collectives before #{calls[min(calls)].number}, by their "
        f"fingerprints: {_by_text(prints)}"
    )


def _by_text(texts: dict[int, str]) -> str:
    ranks = defaultdict(list)
    for rank, text in sorted(texts.items()):
        ranks[text].append(rank)
    return "; ".join(f"{ranks_text(given)} {text}" for text, given in ranks.items())
