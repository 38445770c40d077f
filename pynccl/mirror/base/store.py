"""The exchange through a store by which the ranks of a communicator get its unique id."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.base.errors import DistStoreError

__all__ = ["broadcast_via_store"]

_POLL = timedelta(milliseconds=200)  # between two calls of cancelled()
_LEAST = timedelta(milliseconds=1)  # a store takes a shorter timeout as no limit


def broadcast_via_store(
    store: Store,
    name: str,
    rank: int,
    size: int,
    timeout: timedelta,
    make: Callable[[], bytes],
    cancelled: Callable[[], bool] | None = None,
) -> bytes:
    """Wait until all ranks have called this, and return to each what rank 0 has made.

    A later group may use the same store and the same name: each rank calls once for each exchange,
    so the number of calls so far identifies the exchange.

    Args:
        store: common to the ranks.
        name: of the exchange.
        rank: this one.
        size: the number of ranks.
        timeout: how long to wait for them.
        make: called on rank 0.
        cancelled: polled; once it returns True the wait ends.

    Returns:
        The bytes of make() on rank 0.

    Raises:
        DistStoreError: not all ranks called this before the timeout; the text names the
            missing ones.
    """
    call = store.add(f"{name}/calls", 1)
    exchange = PrefixStore(f"{name}/{(call - 1) // size}", store)
    exchange.set(str(rank), make() if rank == 0 else b"here")  # type: ignore[arg-type]
    keys = [str(other) for other in range(size)]
    try:
        _wait(exchange, keys, timeout, cancelled)
    except RuntimeError as error:
        missing = [key for key in keys if not exchange.check([key])]
        if not missing:
            raise
        if cancelled is not None and cancelled():
            raise DistStoreError(f"rank {rank} has ended its group before {name!r}") from error
        ranks = "rank " + missing[0] if len(missing) == 1 else "ranks " + ", ".join(missing)
        raise DistStoreError(
            f"rank {rank} Timed out waiting {timeout.total_seconds():g} seconds for {ranks} of "
            f"{size} in {name!r}"
        ) from error
    return bytes(exchange.get("0"))


def _wait(
    store: Store, keys: list[str], timeout: timedelta, cancelled: Callable[[], bool] | None
) -> None:
    if cancelled is None:
        return store.wait(keys, max(timeout, _LEAST))
    until = time.monotonic() + timeout.total_seconds()
    while True:
        left = timedelta(seconds=until - time.monotonic())
        try:
            return store.wait(keys, max(min(left, _POLL), _LEAST))
        except RuntimeError:
            if left <= _POLL or cancelled():
                raise
