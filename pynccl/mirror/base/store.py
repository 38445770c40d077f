"""Exchanges through the store by which ranks get unique ids and meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.base.errors import BackendRemoteError, DistNetworkError, DistStoreError
from pynccl.store import ask

__all__ = ["broadcast_via_store", "check_present", "gather_via_store", "job_store"]

_REMOTE_ERROR = 6  # ncclRemoteError
_LONGEST_PAUSE = 0.02  # seconds between two looks at the store
_PATIENCE = 0.3  # seconds until it is asked whether the missing ranks are there
_GRACE = 0.5  # seconds for a store to answer at the deadline

_T = TypeVar("_T")


def job_store(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """A part of a store for one job; a later one of the same ranks gets another part.

    Each rank calls this once for each job, so the number of calls so far identifies the job.
    """
    call = _answered(lambda: store.add("calls", 1), store, "init_process_group", rank, timeout)
    return PrefixStore(str((call - 1) // size), store)


def broadcast_via_store(
    store: Store,
    name: str,
    rank: int,
    ranks: Sequence[int],
    timeout: timedelta,
    make: Callable[[], bytes],
    gone: Callable[[int], str] = lambda _rank: "",
    *,
    connects: bool = False,
) -> bytes:
    """Wait until all ranks have called this, and return to each what the first has made.

    Args:
        store: common to the ranks.
        name: of the exchange; another one for each, but the same again after a failure.
        rank: this one.
        ranks: those of the exchange.
        timeout: how long to wait for them.
        make: called on the first rank.
        gone: tells why a rank no longer takes part; "" if it does, or if that is not known.
        connects: whether the ranks connect next, so that none may have gone since it was here.

    Returns:
        The bytes of make() on the first rank.

    Raises:
        DistStoreError: not all ranks called this before the timeout; the text names the
            missing ones. Or the store does not answer.
        BackendRemoteError: a rank has died or has left the job.
        DistNetworkError: the store is gone; the text names it.
    """
    first = ranks[0]
    value = make() if rank == first else b"here"
    return _answered(
        lambda: _exchange(store, name, rank, ranks, timeout, value, gone, connects=connects).get(
            str(first)
        ),
        store,
        name,
        rank,
        timeout,
    )


def gather_via_store(
    store: Store, name: str, rank: int, size: int, timeout: timedelta, value: bytes
) -> list[bytes]:
    """Wait until all ranks have called this, and return the values of all, in their order.

    The arguments and errors are those of broadcast_via_store().
    """
    keys = [str(other) for other in range(size)]
    return _answered(
        lambda: _exchange(store, name, rank, range(size), timeout, value).multi_get(keys),
        store,
        name,
        rank,
        timeout,
    )


def _answered(call: Callable[[], _T], store: Store, name: str, rank: int, timeout: timedelta) -> _T:
    """What a call of a store returns, which may never answer."""

    def named(_answer: Future[_T]) -> _T:
        with _named(store, name, rank):
            return call()

    seconds = timeout.total_seconds()
    answer = ask(named)
    try:
        return answer.result(seconds + _GRACE)
    except FutureTimeoutError:
        raise DistStoreError(
            f"rank {rank}: {_description(store)} has not answered for {seconds:g} seconds, perhaps "
            f"the rank that keeps it is stopped; it is needed for {name!r}"
        ) from None


def _exchange(
    store: Store,
    name: str,
    rank: int,
    ranks: Sequence[int],
    timeout: timedelta,
    value: bytes,
    gone: Callable[[int], str] = lambda _rank: "",
    *,
    connects: bool = False,
) -> Store:
    """Set a value for each rank. A part of the store in which those of all ranks are set."""
    exchange = PrefixStore(name, store)
    if not exchange.check([str(rank)]):  # after a failure the first value holds
        exchange.set(str(rank), value)  # type: ignore[arg-type]
    began = time.monotonic()
    pause = 0.0002
    missing = list(ranks)
    # Not wait(): another thread cannot use the store meanwhile.
    while missing := [other for other in missing if not exchange.check([str(other)])]:
        waited = time.monotonic() - began
        if waited >= _PATIENCE:
            for other in missing:
                check_present(other, gone, name, rank)
        if waited >= timeout.total_seconds():
            names = "rank" if len(missing) == 1 else "ranks"
            raise DistStoreError(
                f"rank {rank} Timed out waiting {timeout.total_seconds():g} seconds for {names} "
                f"{', '.join(map(str, missing))} of {len(ranks)} in {name!r}"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    if connects:
        for other in ranks:
            check_present(other, gone, name, rank)
        # Once more: while it waited for the others a rank may have ended, which is seen here, and
        # not by a communicator that it never joins.
        _exchange(store, f"{name} (connects)", rank, ranks, timeout, b"", gone)
    return exchange


def check_present(other: int, gone: Callable[[int], str], name: str, rank: int) -> None:
    """Raise BackendRemoteError if another rank of an exchange no longer takes part."""
    if reason := gone(other):
        raise BackendRemoteError(
            f"rank {rank}: rank {other} has died or has left the job, and does not take part in "
            f"{name!r}: {reason}",
            _REMOTE_ERROR,
            name,
            rank,
        )


@contextmanager
def _named(store: Store, name: str, rank: int) -> Iterator[None]:
    """Name the store in the error that a body raises where it is gone."""
    try:
        yield
    except DistNetworkError as error:
        raise DistNetworkError(
            f"rank {rank}: {_description(store)} is gone, the rank that kept it has left or died; "
            f"it is needed for {name!r}: {error}"
        ) from error


def _description(store: Store) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        return f"the job's store at {store.host}:{store.port}"
    return f"the job's {type(store).__name__}"
