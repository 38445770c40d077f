"""Comparison of the calls that the ranks of a communicator are about to issue, through a store.

For a collective, each rank sets ``pynccl/check/COMMUNICATOR/TURN/RANK`` and waits for the keys of
the others. There are two alternating turns: a rank reuses the key of a turn only once all ranks
have set the key of the other turn, and so have read it.

For messages, each rank sets ``pynccl/check/COMMUNICATOR/SOURCE-DESTINATION/send`` or ``.../recv``
to the most recent ones, and compares them with those of the peer. It does not wait: the second rank
to arrive detects a mismatch.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any, NamedTuple

from pynccl.flight.merged import ranks_text
from pynccl.store import Store, joined_key

__all__ = ["Call", "Failure", "Rank", "differences", "exchange"]

_SHORTEST, _LONGEST = 0.0002, 0.005  # seconds between polls
_MESSAGES = 64  # most recent messages kept per pair of ranks and direction

# The rank, the text of the error and, after a timeout, the missing ranks.
Failure = tuple[int, str, "list[int] | None"]


class Call(NamedTuple):
    """The collective that a rank is about to issue.

    Attributes:
        number: the number of the collective.
        text: its name and arguments.
        before: the collectives since the last comparison, with their numbers.
        fingerprint: the fingerprint of all previous collectives.
    """

    number: int
    text: str
    before: list[tuple[int, str]]
    fingerprint: int


class Rank(NamedTuple):
    """A rank of a communicator.

    Attributes:
        store: a store shared by the ranks.
        comm: the communicator's id.
        joined: its id on ranks that joined it later, or None if unknown on this rank.
        has_joined: whether this rank joined it later.
        rank: this rank in the communicator.
        nranks: the size of the communicator.
        limit: the time limit in seconds.
    """

    store: Store
    comm: str
    joined: str | None
    has_joined: bool
    rank: int
    nranks: int
    limit: float


_known: dict[str, str] = {}  # from the ids on ranks that joined to the common ids
_rounds: dict[tuple[str, int], int] = defaultdict(int)  # by communicator and rank
_called: dict[str, dict[int, str]] = defaultdict(dict)  # by message key, then by number


def exchange(collectives: list[tuple[Any, ...]], messages: list[tuple[Any, ...]]) -> Failure | None:
    """Compare the calls that the ranks of this thread are about to issue with those of the others.

    Called by csrc/python/watch/bind_inquiry.cpp.

    Args:
        collectives: for each communicator, a Rank and the values of a Call.
        messages: for each message, a Rank, whether it sends, the peer, the number, dtype and count.

    Returns:
        None if all match.
    """
    return _compare_messages(
        [_Message(Rank(*rank), *message) for rank, *message in messages]
    ) or _compare_collectives([(Rank(*rank), Call(*call)) for rank, *call in collectives])


def _common_id(one: Rank, until: float) -> str:
    """Return the id that all ranks of a communicator know, or "" if it is not known in time."""
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
    published = []
    for message in messages:
        comm = _common_id(message.one, until=0)
        if not comm:  # the other ranks have not compared anything yet
            continue
        key = message.key(comm, message.own)
        called = _called[key]
        called[message.number] = message.text
        called.pop(message.number - _MESSAGES, None)
        message.one.store.set(key, json.dumps(list(called.items())))
        published.append((message, message.key(comm, message.other)))
    for message, key in published:  # the second of the two ranks finds the key of the first
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
                f"check: {ranks_text(missing)} did not reach the comparison of "
                f"#{call.number} {call.text} within {one.limit:g} s"
            )
            return one.rank, f"{text} on rank {one.rank}", missing
        if text := differences(known):
            return one.rank, f"check on rank {one.rank}: {text}; nothing was sent", None
    return None


def _key(one: Rank, rank: int) -> str:
    return f"pynccl/check/{one.comm}/{_rounds[one.comm, one.rank] % 2}/{rank}"


def _gather(one: Rank, own: Call, until: float) -> tuple[dict[int, Call], list[int]]:
    """Return the calls of all ranks, and the ranks whose call is not known in time."""
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
    """Describe how the calls of the ranks differ; "" if they match."""
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
