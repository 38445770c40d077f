"""How the ranks of a communicator find each other: by a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.errors import DistStoreError

__all__ = ["meet"]

_LOOK = timedelta(milliseconds=200)  # between two questions whether to stop
_LEAST = timedelta(milliseconds=1)  # a store takes less for no limit at all


def meet(
    store: Store,
    name: str,
    rank: int,
    size: int,
    timeout: timedelta,
    make: Callable[[], bytes],
    given_up: Callable[[], bool] | None = None,
) -> bytes:
    """Wait until all ranks are here, and give each what rank 0 has made.

    A store may be used again for the same name, by a later group: every rank comes once to each
    meeting, so the count of arrivals tells which one it is.

    Args:
        store: common to the ranks.
        name: of the meeting.
        rank: this one.
        size: how many there are.
        timeout: how long to wait for them.
        make: called on rank 0.
        given_up: asked now and then whether to stop waiting.

    Raises:
        DistStoreError: not all came in time; the text names the ranks that are missing.
    """
    arrival = store.add(f"{name}/arrivals", 1)
    room = PrefixStore(f"{name}/{(arrival - 1) // size}", store)
    room.set(str(rank), make() if rank == 0 else b"here")  # type: ignore[arg-type]
    keys = [str(other) for other in range(size)]
    try:
        _wait(room, keys, timeout, given_up)
    except RuntimeError as error:
        missing = [key for key in keys if not room.check([key])]
        if not missing:
            raise
        if given_up is not None and given_up():
            raise DistStoreError(f"rank {rank} has ended its group before {name!r}") from error
        ranks = "rank " + missing[0] if len(missing) == 1 else "ranks " + ", ".join(missing)
        raise DistStoreError(
            f"rank {rank} Timed out waiting {timeout.total_seconds():g} seconds for {ranks} of "
            f"{size} in {name!r}"
        ) from error
    return bytes(room.get("0"))


def _wait(
    store: Store, keys: list[str], timeout: timedelta, given_up: Callable[[], bool] | None
) -> None:
    if given_up is None:
        return store.wait(keys, max(timeout, _LEAST))
    until = time.monotonic() + timeout.total_seconds()
    while True:
        left = timedelta(seconds=until - time.monotonic())
        try:
            return store.wait(keys, max(min(left, _LOOK), _LEAST))
        except RuntimeError:
            if left <= _LOOK or given_up():
                raise
