"""The catalogue of what hung before there were time limits: what each rank of an entry calls."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pynccl import nccl
from tests.reliability.endings import WAIT_ERRORS, Ending, ending_of, leaving_nothing
from tests.reliability.workers import Member

LIMIT = 0.6  # seconds
_LARGE = 300_000  # elements: too many for a buffer between the ranks


class Place:
    """A rank of an entry, with its communicators."""

    def __init__(self, member: Member, *, blocking: int | None) -> None:
        self.member, self.rank = member, member.rank
        self._blocking = blocking
        self.comms: list[nccl.Communicator] = []
        self.a = self.comm()
        self.small = np.ones(8, np.float32)
        self.large = np.ones(_LARGE, np.float32)
        self.other = np.ones(_LARGE, np.float32)

    def comm(self) -> nccl.Communicator:
        """Another communicator of all ranks."""
        member = self.member
        comm = nccl.Communicator(
            member.nranks,
            member.share_id(),
            member.rank,
            config=nccl.Config(timeout=LIMIT, blocking=self._blocking),
            provider=member.provider,
        )
        if self._blocking == 0:
            comm.wait_ready(20)
        self.comms.append(comm)
        return comm

    def pair(self, members: tuple[int, int]) -> nccl.Communicator | None:
        """A communicator of two ranks."""
        comm = self.a.split(0 if self.rank in members else None)
        if comm is not None:
            self.comms.append(comm)
        return comm

    def all_reduce(self, comm: nccl.Communicator, stream: nccl.Stream | None = None) -> None:
        comm.all_reduce(self.small, nccl.MAX, stream=stream)

    def meet(self) -> None:
        """Wait until all ranks are as far; it leaves no communicator."""
        self.all_reduce(self.a)


# What ranks call. An entry function gets a Place and returns a function: all ranks meet between.
Act = Callable[[], object]


def _opposite_orders(place: Place) -> Act:
    first, second = place.a, place.comm()
    if place.rank:
        first, second = second, first

    def act() -> None:
        place.all_reduce(first)
        place.all_reduce(second)

    return act


def _opposite_orders_on_a_stream(place: Place) -> Act:
    first, second = place.a, place.comm()
    if place.rank:
        first, second = second, first
    stream = place.member.stream()

    def act() -> None:
        place.all_reduce(first, stream)
        place.all_reduce(second, stream)
        stream.synchronize()

    return act


def _opposite_orders_on_two_streams(place: Place) -> Act:
    first, second = place.a, place.comm()
    if place.rank:
        first, second = second, first
    streams, event = (place.member.stream(), place.member.stream()), place.member.event()

    def act() -> None:
        place.all_reduce(first, streams[0])
        event.record(streams[0])
        streams[1].wait(event)
        place.all_reduce(second, streams[1])
        for stream in streams:
            stream.synchronize()

    return act


def _receive_first(place: Place) -> Act:
    peer = 1 - place.rank

    def act() -> None:
        place.a.recv(place.other[:8], peer)
        place.a.send(place.small, peer)

    return act


def _send_first(place: Place) -> Act:
    peer = 1 - place.rank

    def act() -> None:
        place.a.send(place.large, peer)
        place.a.recv(place.other, peer)

    return act


def _ring(place: Place, call: str) -> Act:
    nranks = place.member.nranks
    step = 1 if call == "send" else -1
    return lambda: getattr(place.a, call)(place.large, (place.rank + step) % nranks)


def _three_pairs(place: Place) -> Act:
    """Each rank is in two pairs, and begins with another one than its neighbour."""
    comms = [place.pair((rank, (rank + 1) % 3)) for rank in range(3)]
    first, second = comms[place.rank], comms[(place.rank - 1) % 3]

    def act() -> None:
        place.all_reduce(first)
        place.all_reduce(second)

    return act


def _against_all_reduce(place: Place, call: Callable[[Place], object]) -> Act:
    return lambda: place.all_reduce(place.a) if place.rank else call(place)


def _register(place: Place) -> object:
    return place.a.register_window(place.a.mem_alloc(4096))


def _alone(place: Place, call: Callable[[Place], object]) -> Act:
    """Rank 0 calls, the others do not come."""
    return lambda: None if place.rank else call(place)


def _queued(place: Place, call: Callable[[nccl.Communicator], object]) -> Act:
    """Rank 0 ends a communicator whose work is queued, the others do not come."""
    stream = place.member.stream()

    def act() -> None:
        if place.rank:
            return
        place.all_reduce(place.a, stream)
        call(place.a)
        stream.synchronize()

    return act


def _collect_garbage(place: Place) -> Act:
    """A destructor is silent: it must only return."""
    stream = place.member.stream()

    def act() -> None:
        if place.rank:
            return
        place.all_reduce(place.a, stream)
        place.comms.clear()
        del place.a
        gc.collect()

    return act


def _launch_by_one(place: Place) -> Act:
    stream = place.member.stream()
    with nccl.capture(stream) as graph:
        place.all_reduce(place.a, stream)

    def act() -> None:
        if place.rank == 0:
            graph.launch(stream)
            stream.synchronize()

    return act


def _shrink_without_a_living_rank(place: Place) -> Act:
    def act() -> None:
        if place.rank == 2:
            place.all_reduce(place.a)
        else:
            place.comms.append(place.a.shrink([2]))

    return act


def _group_with_one_missing(place: Place) -> Act:
    peer = 1 - place.rank

    def act() -> None:
        with nccl.group():
            if place.rank == 0:
                place.a.send(place.small, peer)
            place.a.recv(place.other[:8], peer)

    return act


def _different_sizes(place: Place) -> Act:
    """Both are copied directly."""

    def act() -> None:
        if place.rank:
            place.a.recv(place.other[: _LARGE // 2], 0)
        else:
            place.a.send(place.large, 1)

    return act


def _skipped(place: Place) -> Act:
    """Rank 0 skips one of equal calls."""

    def act() -> None:
        for _ in range(10 - (place.rank == 0)):
            place.all_reduce(place.a)

    return act


def _wait_for_a_signal(place: Place) -> Act:
    place.a.register_window(place.a.mem_alloc(4096))
    return lambda: place.a.wait_signal(1 - place.rank)


@dataclass(frozen=True)
class Hang:
    """An entry.

    Attributes:
        prepare: collective; returns what the rank then calls.
        names: what each error must contain, a regular expression.
        nranks: of the world.
        raising: the ranks that must get an error; None for all.
        some: one of them must. What one rank revokes lets the other one complete what this rank
            had contributed to, and the next operation of a stream begin.
        blocking: the communicators' configuration.
        answers: its ranks answer those that come late, for a while, with a thread and a socket.
    """

    prepare: Callable[[Place], Act]
    names: str
    nranks: int = 2
    raising: tuple[int, ...] | None = None
    some: bool = False
    blocking: int | None = None
    answers: bool = False


_FIRST = (0,)
_ALL_REDUCE = "all_?reduce"
# A rank that had not begun to wait in a communicator revokes it without an operation to name.
_OR_REVOKED = f"{_ALL_REDUCE}|revoked its communicator"

HANGS: dict[str, Hang] = {
    "opposite orders": Hang(_opposite_orders, _ALL_REDUCE),
    "opposite orders on a stream": Hang(_opposite_orders_on_a_stream, _OR_REVOKED, some=True),
    "opposite orders on two streams": Hang(_opposite_orders_on_two_streams, _OR_REVOKED, some=True),
    "recv and recv": Hang(_receive_first, "recv"),
    "send and send": Hang(_send_first, "send"),
    "recv in a ring": Hang(lambda place: _ring(place, "recv"), "recv", 3),
    "send in a ring": Hang(lambda place: _ring(place, "send"), "send", 3),
    "three pairs": Hang(_three_pairs, _ALL_REDUCE, 3),
    "send against all_reduce": Hang(
        lambda place: _against_all_reduce(place, lambda place: place.a.send(place.large, 1)),
        f"send|{_ALL_REDUCE}",
    ),
    "recv against all_reduce": Hang(
        lambda place: _against_all_reduce(place, lambda place: place.a.recv(place.large, 1)),
        f"recv|{_ALL_REDUCE}",
    ),
    "registration against all_reduce": Hang(
        lambda place: _against_all_reduce(place, _register), f"WindowRegister|{_ALL_REDUCE}"
    ),
    "split against all_reduce": Hang(
        lambda place: _against_all_reduce(place, lambda place: place.a.split(0)),
        f"Split|{_ALL_REDUCE}",
    ),
    "suspend against all_reduce": Hang(
        lambda place: _against_all_reduce(place, lambda place: place.a.suspend()),
        f"Suspend|{_ALL_REDUCE}",
    ),
    "suspend by one": Hang(
        lambda place: _alone(place, lambda place: place.a.suspend()), "Suspend", 3, _FIRST
    ),
    "split by one": Hang(
        lambda place: _alone(place, lambda place: place.a.split(0)), "Split", 3, _FIRST
    ),
    "registration by one": Hang(
        lambda place: _alone(place, _register), "WindowRegister", 3, _FIRST
    ),
    "shrink by one": Hang(
        lambda place: _alone(place, lambda place: place.a.shrink([2])),
        "Shrink",
        3,
        _FIRST,
        answers=True,
    ),
    "shrink with abort by one": Hang(
        lambda place: _alone(place, lambda place: place.a.shrink([2], abort=True)),
        "Shrink",
        3,
        _FIRST,
        answers=True,
    ),
    "shrink without a living rank": Hang(
        _shrink_without_a_living_rank, f"Shrink|{_ALL_REDUCE}", 3, (2,)
    ),
    "grow by one": Hang(
        lambda place: _alone(place, lambda place: place.a.grow(3, place.a.get_unique_id())),
        "Grow",
        2,
        _FIRST,
    ),
    "a message that is missing in a group": Hang(_group_with_one_missing, "recv|send", 2, _FIRST),
    "different sizes": Hang(_different_sizes, "send|recv"),
    "a skipped call": Hang(_skipped, _ALL_REDUCE, 3, (1, 2)),
    "a signal that is missing": Hang(_wait_for_a_signal, "wait_?signal"),
    "finalize with work": Hang(
        lambda place: _queued(place, lambda comm: comm.finalize()),
        f"Finalize|{_ALL_REDUCE}",
        2,
        _FIRST,
    ),
    "close with work": Hang(
        lambda place: _queued(place, lambda comm: comm.close()),
        f"Destroy|Finalize|{_ALL_REDUCE}",
        2,
        _FIRST,
    ),
    "a graph launched by one": Hang(_launch_by_one, _ALL_REDUCE, 2, _FIRST),
    "garbage collection with work": Hang(_collect_garbage, "", 2, ()),
    "blocking=0": Hang(
        lambda place: _alone(place, lambda place: place.all_reduce(place.a)),
        _ALL_REDUCE,
        2,
        _FIRST,
        blocking=0,
    ),
    "blocking=0, opposite orders": Hang(_opposite_orders, _ALL_REDUCE, blocking=0),
}


def hang(member: Member, name: str) -> tuple[float, Ending | None]:
    """Run a rank of an entry: how many seconds its calls took, and what they raised."""
    entry = HANGS[name]
    place = Place(member, blocking=entry.blocking)
    act = entry.prepare(place)
    place.meet()
    began = time.monotonic()
    ending = None
    try:
        act()
    except WAIT_ERRORS as error:
        ending = ending_of(error, began, name, None)
    took = time.monotonic() - began
    member.tell("done")
    member.hear("go")  # a rank that does not come lives
    for comm in place.comms:
        comm.abort()
    return took, ending


@leaving_nothing
def hang_leaving_nothing(member: Member, name: str) -> tuple[float, Ending | None]:
    """The same, where it leaves nothing in its process."""
    return hang(member, name)
