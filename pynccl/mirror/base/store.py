"""Rendezvous and exchange of unique ids through the store."""

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
_LONGEST_PAUSE = 0.02  # seconds between polls of the store
_PATIENCE = 0.3  # seconds before checking whether the missing ranks are alive
_GRACE = 0.5  # seconds past the deadline for a store to answer

_T = TypeVar("_T")


def job_store(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """Return the store of one job, with a prefix that differs from later jobs of the same ranks.

    Each rank calls this once per job, so the number of previous calls identifies the job.
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
    """Wait until all ranks have called this, and return the first rank's value on each.

    Args:
        store: a store shared by the ranks.
        name: a unique name of the exchange; retries after a failure use the same name.
        rank: this rank.
        ranks: the ranks that take part.
        timeout: how long to wait for them.
        make: returns the value; called on the first rank.
        gone: returns why a rank no longer takes part, or "" if it does or if unknown.
        connects: whether the ranks connect next, so all of them must still be present.

    Returns:
        The bytes of make() on the first rank.

    Raises:
        DistStoreError: not all ranks called this before the timeout (the text names the missing
            ranks), or the store does not answer.
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
    """Wait until all ranks have called this, and return the values of all ranks, by rank.

    Arguments and errors are those of broadcast_via_store().
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
    """Return the result of a call of a store, which may never answer."""

    def named(_answer: Future[_T]) -> _T:
        with _named(store, name, rank):
            return call()

    seconds = timeout.total_seconds()
    answer = ask(named)
    try:
        return answer.result(seconds + _GRACE)
    except FutureTimeoutError:
        raise DistStoreError(
            f"rank {rank}: {_description(store)} has not answered for {seconds:g} seconds during "
            f"{name!r}; the rank that hosts it may be stopped"
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
    """Set this rank's value, wait for the values of all ranks, and return the store of them."""
    exchange = PrefixStore(name, store)
    if not exchange.check([str(rank)]):  # after a failure, the first value remains
        exchange.set(str(rank), value)  # type: ignore[arg-type]
    began = time.monotonic()
    pause = 0.0002
    missing = list(ranks)
    # Not wait(), which would block other threads that use the store.
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
        # A second round detects ranks that have ended while waiting in the first. Otherwise the
        # others would wait for them while creating the communicator.
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
    """Name the store in the error raised if the store is gone."""
    try:
        yield
    except DistNetworkError as error:
        raise DistNetworkError(
            f"rank {rank}: {_description(store)} is gone during {name!r}; the rank that hosted it "
            f"has left or died: {error}"
        ) from error


def _description(store: Store) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        return f"the job's store at {store.host}:{store.port}"
    return f"the job's {type(store).__name__}"
