"""The exchange through the store by which the ranks of a group get a unique id and addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.base.errors import DistNetworkError, DistStoreError

__all__ = ["broadcast_via_store", "gather_via_store"]

_LEAST = timedelta(milliseconds=1)  # a store takes a shorter timeout as no limit


def broadcast_via_store(
    store: Store,
    name: str,
    rank: int,
    size: int,
    timeout: timedelta,
    make: Callable[[], bytes],
) -> bytes:
    """Wait until all ranks have called this, and return to each what rank 0 has made.

    Args:
        store: common to the ranks.
        name: of the exchange.
        rank: this one.
        size: the number of ranks.
        timeout: how long to wait for them.
        make: called on rank 0.

    Returns:
        The bytes of make() on rank 0.

    Raises:
        DistStoreError: not all ranks called this before the timeout; the text names the
            missing ones.
        DistNetworkError: the store is gone; the text names it.
    """
    with _named(store, name, rank):
        value = make() if rank == 0 else b"here"
        return _exchange(store, name, rank, size, timeout, value).get("0")


def gather_via_store(
    store: Store, name: str, rank: int, size: int, timeout: timedelta, value: bytes
) -> list[bytes]:
    """Wait until all ranks have called this, and return the values of all, in their order.

    The arguments and errors are those of broadcast_via_store().
    """
    with _named(store, name, rank):
        exchange = _exchange(store, name, rank, size, timeout, value)
        return exchange.multi_get([str(other) for other in range(size)])


def _exchange(
    store: Store, name: str, rank: int, size: int, timeout: timedelta, value: bytes
) -> Store:
    """Set a value for each rank. A part of the store in which those of all ranks are set.

    A later group may use the same store and the same name: each rank calls once for each exchange,
    so the number of calls so far identifies the exchange.
    """
    call = store.add(f"{name}/calls", 1)
    exchange = PrefixStore(f"{name}/{(call - 1) // size}", store)
    exchange.set(str(rank), value)  # type: ignore[arg-type]
    keys = [str(other) for other in range(size)]
    try:
        exchange.wait(keys, max(timeout, _LEAST))
    except DistNetworkError:
        raise
    except RuntimeError as error:
        missing = [key for key in keys if not exchange.check([key])]
        if not missing:
            raise
        ranks = "rank " + missing[0] if len(missing) == 1 else "ranks " + ", ".join(missing)
        raise DistStoreError(
            f"rank {rank} Timed out waiting {timeout.total_seconds():g} seconds for {ranks} of "
            f"{size} in {name!r}"
        ) from error
    return exchange


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
