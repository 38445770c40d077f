"""The exchange through the store by which the ranks of a group get a unique id and addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.base.errors import BackendRemoteError, DistNetworkError, DistStoreError
from pynccl.store import ask

__all__ = ["Presence", "broadcast_via_store", "gather_via_store"]

_REMOTE_ERROR = 6  # ncclRemoteError
_LONGEST_PAUSE = 0.02  # seconds between two looks at the store
_PATIENCE = 0.3  # seconds until it is asked whether the missing ranks are there
_GRACE = 0.5  # seconds for a store to answer at the deadline

_T = TypeVar("_T")


class Presence(Protocol):
    """Tells whether the ranks of an exchange are still there."""

    def gone(self, rank: int, seconds: float) -> str:
        """Why a rank is not there any more; "" where it is, or that is not known.

        Args:
            rank: its place in the exchange.
            seconds: how long to wait for an answer of its machine at most.
        """

    def close(self) -> None:
        """Release what it needs for that."""


class _Unknown:
    def gone(self, _rank: int, _seconds: float) -> str:
        return ""

    def close(self) -> None:
        pass


def broadcast_via_store(
    store: Store,
    name: str,
    rank: int,
    size: int,
    timeout: timedelta,
    make: Callable[[], bytes],
    presence: Presence | None = None,
) -> bytes:
    """Wait until all ranks have called this, and return to each what rank 0 has made.

    Args:
        store: common to the ranks.
        name: of the exchange.
        rank: this one.
        size: the number of ranks.
        timeout: how long to wait for them.
        make: called on rank 0.
        presence: tells which ranks have died; it is closed.

    Returns:
        The bytes of make() on rank 0.

    Raises:
        DistStoreError: not all ranks called this before the timeout; the text names the
            missing ones. Or the store does not answer.
        BackendRemoteError: a rank has died or has left the job.
        DistNetworkError: the store is gone; the text names it.
    """
    value = make() if rank == 0 else b"here"
    with closing(presence or _Unknown()) as known:
        return _answered(
            lambda: _exchange(store, name, rank, size, timeout, value, known).get("0"),
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
        lambda: _exchange(store, name, rank, size, timeout, value, _Unknown()).multi_get(keys),
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
    size: int,
    timeout: timedelta,
    value: bytes,
    presence: Presence,
) -> Store:
    """Set a value for each rank. A part of the store in which those of all ranks are set.

    A later group may use the same store and the same name: each rank calls once for each exchange,
    so the number of calls so far identifies the exchange.
    """
    call = store.add(f"{name}/calls", 1)
    exchange = PrefixStore(f"{name}/{(call - 1) // size}", store)
    exchange.set(str(rank), value)  # type: ignore[arg-type]
    began = time.monotonic()
    end = began + timeout.total_seconds()
    pause = 0.0002
    missing = [str(other) for other in range(size)]
    # Not wait(): another thread cannot use the store meanwhile.
    while missing := [key for key in missing if not exchange.check([key])]:
        if time.monotonic() - began >= _PATIENCE:
            _check_presence(presence, missing, name, rank, end)
        if time.monotonic() >= end:
            ranks = "rank " + missing[0] if len(missing) == 1 else "ranks " + ", ".join(missing)
            raise DistStoreError(
                f"rank {rank} Timed out waiting {timeout.total_seconds():g} seconds for {ranks} of "
                f"{size} in {name!r}"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return exchange


def _check_presence(
    presence: Presence, missing: list[str], name: str, rank: int, end: float
) -> None:
    for key in missing:
        left = end - time.monotonic()
        if left <= 0:
            return
        if reason := presence.gone(int(key), left):
            raise BackendRemoteError(
                f"rank {rank}: rank {key} has died or has left the job, and does not take part in "
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
