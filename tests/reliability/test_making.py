"""Proves that giving up the creation of a communicator, at a time limit, by Ctrl-C or by an abort
on another thread, takes effect immediately, leaks nothing and leaves the parent usable; and that
the waiting ranks immediately get an error that names the rank and the reason.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pynccl import nccl
from tests.reliability.endings import leaving_nothing
from tests.reliability.workers import Lane, Member
from tests.support.blocking import interrupt_when_blocked, when_blocked
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_LIMIT = 0.5  # seconds
_LIMIT_OF_HOST = 3.0  # within which the others join
_PATIENT = 60.0
_SOON = 20.0  # seconds, even on a busy machine


def _config(limit: float = _LIMIT) -> nccl.Config:
    return nccl.Config(init_timeout=limit)


@pytest.fixture
def run() -> Iterator[Callable[..., None]]:
    """Run a function as the ranks of a world. Those that stay away hear of it when the others are
    done.
    """

    def run(nranks: int, function: Callable[..., None], *args: object, away: int = 0) -> None:
        came = range(nranks - away)
        with lane.world(nranks, function, *args) as world:
            world.join(came, 30)
            world.say(range(nranks - away, nranks), "go")
            world.join(range(nranks), 30)

    with Lane() as lane:
        yield run


def _init(member: Member, nranks: int, config: nccl.Config | None = None) -> nccl.Communicator:
    unique_id = member.share_id()
    return nccl.Communicator(nranks, unique_id, member.rank, config=config, provider="host")


def _check_works(comm: nccl.Communicator) -> None:
    array = np.ones(4)
    comm.all_reduce(array)
    assert (array == comm.nranks).all()


def _gives_up(
    member: Member,
    gives_up: int,
    create: Callable[[nccl.Config], object],
    limit: float = _LIMIT,
) -> None:
    """One rank is late, and informs the others."""
    began = time.monotonic()
    late = member.rank == gives_up
    with pytest.raises(nccl.NcclTimeoutError) as caught:
        create(_config(limit if late else _PATIENT))
    assert time.monotonic() - began < limit + _SOON
    text = str(caught.value)
    assert f"rank {gives_up} (pid " in text, text
    assert f"gave up after {limit:g} s" in text or f"within {limit:g} s" in text, text
    assert "rank -1" not in text


@leaving_nothing
def _late_init(member: Member) -> None:
    _gives_up(
        member,
        0,
        lambda config: nccl.Communicator(
            2, nccl.get_unique_id("host"), 0, config=config, provider="host"
        ),
    )


def _after(member: Member, *ranks: int) -> None:
    """Continue when these ranks wait in their creations. Only those that wait hear of a rank that
    gives up a rendezvous.
    """
    if member.rank in ranks:
        when_blocked(lambda: member.set_event("waits"))
    else:
        member.wait_event("waits", *ranks)


def _late_in_the_rendezvous(member: Member, hosts: bool) -> None:
    unique_id = member.share_id()
    _after(member, *([1] if hosts else [0, 2]))
    _gives_up(
        member,
        1,
        lambda config: nccl.Communicator(
            4, [unique_id, unique_id], member.rank, config=config, provider="host"
        ),
        _LIMIT_OF_HOST if hosts else _LIMIT,
    )


@pytest.mark.parametrize("hosts", [False, True])
def test_ranks_in_a_rendezvous_get_an_error(run: Callable[..., None], hosts: bool) -> None:
    run(3, _late_in_the_rendezvous, hosts)


@leaving_nothing
def _late_split(member: Member) -> None:
    comm = _init(member, 3)
    if member.rank == 2:
        member.hear("go")  # it has started, but does not call
        comm.abort()
        return
    _gives_up(member, 0, lambda config: comm.split(0 if member.rank == 0 else None, config=config))
    if member.rank == 0:
        when_blocked(lambda: member.set_event("shrinks"))
    else:
        member.wait_event("shrinks", 0)
        time.sleep(0.5)  # rank 0 checks every 200 ms whether a missing rank has given up
    with comm.shrink([2], abort=True) as smaller:
        _check_works(smaller)
    comm.abort()


@leaving_nothing
def _late_after_a_revocation(member: Member) -> None:
    """No collective can run: the ranks agree otherwise."""
    comm = _init(member, 3)
    _check_works(comm)
    comm.revoke()
    if member.rank == 2:
        member.hear("go")
        comm.abort()
        return
    if member.rank == 1:
        when_blocked(lambda: member.set_event("waits"))
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 \(pid \d+\) gave up"):
            comm.split(0, config=_config(_PATIENT))
    else:
        member.wait_event("waits", 1)
        with pytest.raises(nccl.NcclTimeoutError, match=r"rank 2 \(pid \d+\) did not take part"):
            comm.split(0, config=_config())
    with comm.shrink([2], abort=True) as smaller:
        _check_works(smaller)
    comm.abort()


def _come_when_given_up(member: Member) -> None:
    """The late rank finds its own agreement complete, and no other rank in the rendezvous."""
    comm = _init(member, 2)
    comm.revoke()
    if member.rank == 0:
        with pytest.raises(nccl.NcclTimeoutError):
            comm.split(0, config=_config())
        member.report("gave up")
        member.hear("end")
    else:
        member.hear("come")
        began = time.monotonic()
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 \(pid \d+\) gave up"):
            comm.split(0, config=_config(_PATIENT))
        assert time.monotonic() - began < _SOON
    comm.abort()


def test_a_late_rank_of_an_abandoned_split() -> None:
    with Lane() as lane, lane.world(2, _come_when_given_up) as world:
        world.gather([0], "gave up", 30)
        world.say([1], "come")
        world.join([1], 30)
        world.say([0], "end")
        world.join([0], 30)


def _late_shrink(member: Member) -> None:
    comm = _init(member, 4)
    if member.rank < 2:
        _gives_up(member, 1, lambda config: comm.shrink([3], config=config))
        with comm.shrink([2, 3], abort=True) as smaller:
            _check_works(smaller)
    else:
        member.hear("go")
    comm.abort()


def _late_grow(member: Member) -> None:
    """No rank joins; the parent is unaffected."""
    comm = _init(member, 2)
    unique_id = comm.get_unique_id() if member.rank == 0 else None
    _gives_up(member, 0, lambda config: comm.grow(3, unique_id, config=config))
    _check_works(comm)
    with comm.split(0) as child:  # type: ignore[union-attr]
        _check_works(child)
    comm.close()


def _parent(member: Member, ranks: list[int]) -> nccl.Communicator:
    """A communicator of these ranks of the world, and on all ranks an id to grow it."""
    return nccl.Communicator(
        len(ranks), member.share_id(), ranks.index(member.rank), provider="host"
    )


def _join(unique_id: bytes, nranks: int, rank: int, config: nccl.Config | None) -> None:
    nccl.Communicator.join(nranks, unique_id, rank, config=config, provider="host")


def _grow_without_a_rank(member: Member, late: bool) -> None:
    """A rank of the parent does not call grow(). The root informs the joining rank, even one that
    joins after the root gave up.
    """
    if member.rank == 1:
        member.share()
        unique_id: bytes = member.share()
        if late:
            member.wait_event("gave up", 0)
        else:
            when_blocked(lambda: member.set_event("joins"))
        _gives_up(member, 0, lambda config: _join(unique_id, 3, 2, config))
        return
    comm = _parent(member, [0, 2])
    unique_id = member.share(lambda: bytes(comm.get_unique_id()))
    if member.rank == 0:
        if not late:
            member.wait_event("joins", 1)
        _gives_up(member, 0, lambda config: comm.grow(3, unique_id, config=config))
        member.set_event("gave up")
    else:
        member.hear("go")
    comm.abort()


@pytest.mark.parametrize("late", [False, True])
def test_a_grow_without_a_rank_of_the_parent(run: Callable[..., None], late: bool) -> None:
    run(3, _grow_without_a_rank, late, away=1)


def _grow_alone(member: Member) -> None:
    """The only rank of the parent gives up before another one joins."""
    first_id = member.share_id()
    if member.rank == 0:
        comm = nccl.Communicator(1, first_id, 0, provider="host")
        unique_id: bytes = member.share(lambda: bytes(comm.get_unique_id()))
        _gives_up(member, 0, lambda config: comm.grow(2, unique_id, config=config))
        member.set_event("gave up")
        comm.close()
    else:
        unique_id = member.share()
        member.wait_event("gave up", 0)
        _gives_up(member, 0, lambda config: _join(unique_id, 2, 1, config))


def _end_with_an_unused_id(member: Member, end: str, late: bool) -> None:
    """The root ends a communicator without growing it, before or while another rank joins."""
    first_id = member.share_id()
    if member.rank == 0:
        unique_id: bytes = member.share()
        began = time.monotonic()
        how = {"close": "destroyed", "abort": "aborted", "recover": "recovered"}[end]
        if late:
            member.wait_event("ended", 1)
        else:
            when_blocked(lambda: member.set_event("joins"))
        with pytest.raises(
            nccl.NcclRemoteError, match=rf"rank 0 \(pid \d+\) {how} .* no longer grow"
        ):
            _join(unique_id, 2, 1, _config(_PATIENT))
        assert time.monotonic() - began < _SOON
        return
    comm = nccl.Communicator(1, first_id, 0, provider="host")
    member.share(lambda: bytes(comm.get_unique_id()), maker=1)
    if not late:
        member.wait_event("joins", 0)
    getattr(comm, end)()
    member.set_event("ended")
    member.hear("go")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("end", ["close", "abort", "recover"])
def test_a_communicator_that_ends_before_it_grows(
    run: Callable[..., None], end: str, late: bool
) -> None:
    run(2, _end_with_an_unused_id, end, late, away=1)


def _end_before_a_second_rank_joins(member: Member) -> None:
    """Another process has joined, got the reason and exited before."""
    first_id = member.share_id()
    if member.rank == 1:
        comm = nccl.Communicator(1, first_id, 0, provider="host")
        member.share(lambda: bytes(comm.get_unique_id()), maker=1)
        member.wait_event("joins", 0)
        comm.close()
        member.hear("go")
        return
    unique_id: bytes = member.share()
    refused = pytest.raises(nccl.NcclRemoteError, match=r"rank 0 \(pid \d+\) destroyed")
    child = os.fork()
    if child == 0:
        when_blocked(lambda: member.set_event("joins"))
        with refused:
            _join(unique_id, 3, 1, _config(_PATIENT))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with refused:
        _join(unique_id, 3, 2, _config(_PATIENT))


def test_every_new_rank_learns_that_a_communicator_has_ended(run: Callable[..., None]) -> None:
    run(2, _end_before_a_second_rank_joins, away=1)


def _late_join(member: Member) -> None:
    """A joining rank gives up; the parent's ranks are informed, and the parent is unaffected."""
    if member.rank == 2:
        member.share()
        unique_id: bytes = member.share()
        _after(member, 0, 1)
        _gives_up(member, 2, lambda config: _join(unique_id, 4, 2, config))
        return
    comm = _parent(member, [0, 1])
    unique_id = member.share(lambda: bytes(comm.get_unique_id()))
    _after(member, 0, 1)
    own_id = unique_id if member.rank == 0 else None
    _gives_up(member, 2, lambda config: comm.grow(4, own_id, config=config))
    _check_works(comm)
    comm.close()


@leaving_nothing
def _give_up_alone(_member: Member, unique_id: bytes) -> None:
    with pytest.raises(nccl.NcclTimeoutError, match="missing: 0"):
        _join(unique_id, 2, 1, _config())


def _late_join_alone(member: Member) -> None:
    with nccl.Communicator(1, member.share_id(), 0, provider="host") as comm:
        _give_up_alone(member, bytes(comm.get_unique_id()))


@leaving_nothing
def _late_without_blocking(_member: Member) -> None:
    config = nccl.Config(init_timeout=_LIMIT, blocking=False)
    unique_id = nccl.get_unique_id("host")
    comm = nccl.Communicator(2, unique_id, 0, config=config, provider="host")
    with pytest.raises(nccl.NcclTimeoutError, match="missing: 1"):
        comm.wait_ready(_PATIENT)
    comm.abort()


@leaving_nothing
def _abort_in_a_group(_member: Member) -> None:
    group = nccl.group()
    group.__enter__()
    comm = nccl.Communicator(2, nccl.get_unique_id("host"), 0, provider="host")
    when_blocked(comm.abort)
    with pytest.raises(nccl.NcclError, match="aborted"):
        group.__exit__(None, None, None)
    assert comm.closed


@leaving_nothing
def _abort_the_parent(member: Member) -> None:
    comm = _init(member, 3)
    if member.rank == 0:
        when_blocked(comm.abort)
        with pytest.raises(nccl.NcclError, match="another thread has aborted"):
            comm.split(0)
    elif member.rank == 1:
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 \(pid \d+\) (aborted|revoked)"):
            comm.split(0)
        comm.abort()
    else:
        member.hear("go")
        comm.abort()


def _leave_before_a_shrink(member: Member) -> None:
    comm = _init(member, 3)
    if member.rank == 0:
        text = r"rank 1 \(pid \d+\) aborted .* and cannot be in the new communicator"
        with pytest.raises(nccl.NcclRemoteError, match=text):
            comm.shrink([2])
    comm.abort()


def _interrupted(member: Member, create: Callable[[], object]) -> None:
    """Rank 0 is interrupted during the creation, and informs the others."""
    if member.rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt_when_blocked()
        with pytest.raises(KeyboardInterrupt):
            create()
    else:
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 \(pid \d+\) was interrupted"):
            create()


def _interrupted_init(member: Member, limit: float | None) -> None:
    unique_id = member.share_id()
    config = nccl.Config(init_timeout=limit)

    def init(member: Member) -> None:
        _after(member, *range(1, member.nranks))
        _interrupted(
            member,
            lambda: nccl.Communicator(3, unique_id, member.rank, config=config, provider="host"),
        )

    if member.rank == 0:
        init = leaving_nothing(init)  # the others answer late ranks for a while
    init(member)


@leaving_nothing
def _interrupted_split(member: Member, limit: float | None) -> None:
    comm = _init(member, 3)
    if member.rank < 2:
        _interrupted(member, lambda: comm.split(0, config=nccl.Config(init_timeout=limit)))
        with comm.shrink([2], abort=True) as smaller:
            _check_works(smaller)
    else:
        member.hear("go")
    comm.abort()


@pytest.mark.parametrize("limit", [None, _PATIENT])
@pytest.mark.parametrize(
    ("function", "away"), [(_interrupted_init, 0), (_interrupted_split, 1)], ids=["init", "split"]
)
def test_an_interrupted_creation(
    run: Callable[..., None], function: Callable[..., None], away: int, limit: float | None
) -> None:
    run(2 + away, function, limit, away=away)


@leaving_nothing
def _interrupted_group(member: Member) -> None:
    ids = [nccl.get_unique_id("host") for _ in range(2)]

    def create() -> None:
        with nccl.group():
            for unique_id in ids:
                nccl.Communicator(2, unique_id, 0, provider="host")

    _interrupted(member, create)


@pytest.mark.parametrize(
    ("function", "nranks", "away"),
    [
        (_late_init, 1, 0),
        (_late_split, 3, 1),
        (_late_after_a_revocation, 3, 1),
        (_late_shrink, 4, 2),
        (_late_grow, 2, 0),
        (_grow_alone, 2, 0),
        (_late_join, 3, 0),
        (_late_join_alone, 1, 0),
        (_late_without_blocking, 1, 0),
        (_abort_in_a_group, 1, 0),
        (_abort_the_parent, 3, 1),
        (_leave_before_a_shrink, 3, 0),
        (_interrupted_group, 1, 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)).strip("_"),
)
def test_an_abandoned_creation(
    run: Callable[..., None], function: Callable[..., None], nranks: int, away: int
) -> None:
    run(nranks, function, away=away)


def _split_after_giving_up(rank: Rank) -> None:
    """Rank 0 gives up the second creation while the first one is still waiting for rank 1."""
    comm = rank.comm
    comm.all_reduce(np.ones(1))
    comm.revoke()
    if rank.rank == 1:
        rank.wait_event("gave up", 0)
    error = nccl.NcclTimeoutError if rank.rank == 0 else nccl.NcclRemoteError
    reason = r"rank 0 \(pid \d+\) gave up"
    with pytest.raises(error, match=reason), nccl.group():  # noqa: PT012
        for limit in (1.0, 0.3):
            comm.split(0, config=nccl.Config(init_timeout=limit))
    rank.set_event("gave up")
    with comm.split(0, config=nccl.Config(init_timeout=_SOON)) as child:
        child.all_reduce(np.ones(1))


def test_creations_after_one_that_was_given_up(launch: Launcher) -> None:
    launch(2, _split_after_giving_up, timeout=60, fresh=True)
