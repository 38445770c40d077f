"""Rendezvous: exchanges between the ranks of a group through a store of torch.distributed.

Every exchange has a time limit, even if the store never answers.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import TypeVar

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.errors import NcclRemoteError
from pynccl.store import Answer, ask

__all__ = ["Rendezvous", "of_attempt", "without_prefix"]

_REMOTE_ERROR = 6  # ncclRemoteError
_SHORTEST, _LONGEST = 0.0002, 0.02  # seconds between polls of the store
_PATIENCE = 0.3  # seconds before checking whether the missing ranks are alive
_CONNECTS = 0.5  # seconds, at least, for the second round of ranks that connect

_T = TypeVar("_T")


class Rendezvous:
    """The exchanges of a group.

    A time limit of 0 seconds is no limit.

    Errors of all methods, besides those listed: DistStoreError if the time limit expires, with the
    missing ranks or the name of the store; DistNetworkError if the store is gone; DistBackendError
    after cancel().

    Args:
        store: a store shared by the ranks of the group.
        rank: this rank.
        gone: returns why a rank no longer takes part, or "" if it does or if unknown.
        name_of: returns the name of a rank in the error of an exchange that is late.

    Attributes:
        rank: as given.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        gone: Callable[[int], str] = lambda _rank: "",
        name_of: Callable[[int], str] = str,
    ) -> None:
        self._store = store
        self.rank = rank
        self._gone = gone
        self._name_of = name_of
        self._cancelled = False
        self._pending: set[Future[object]] = set()

    def broadcast(
        self,
        name: str,
        ranks: Sequence[int],
        create: Callable[[], bytes],
        timeout: float,
    ) -> bytes:
        """Wait until all ranks have called this, and return the first rank's value on each.

        The ranks connect next, so none of them may have ended while it waited for the others.

        Args:
            name: a unique name of the exchange; retries after a failure use the same name.
            ranks: the ranks that take part.
            create: returns the value; called on the first rank.
            timeout: the time limit in seconds.

        Raises:
            NcclRemoteError: a rank no longer takes part.
        """
        timeout = timeout or math.inf
        own, keys = str(self.rank), {str(rank): rank for rank in ranks}
        value = create() if self.rank == ranks[0] else b""

        def exchange(answer: Answer[bytes]) -> bytes:
            end = time.monotonic() + timeout
            store = self._exchange(answer, name, (own, value), keys, timeout)
            # A second round detects ranks that have ended while waiting in the first. Otherwise the
            # others would wait for them while creating the communicator.
            left = max(end - time.monotonic(), _CONNECTS)
            self._exchange(answer, f"{name} (connects)", (own, b""), keys, left)
            return bytes(store.get(str(ranks[0])))

        return self.call(exchange, name, timeout)

    def gather(self, name: str, ranks: Sequence[int], value: bytes, timeout: float) -> list[bytes]:
        """Wait until all ranks have called this, and return their values, in order."""
        keys = {str(rank): rank for rank in ranks}
        return self.gather_by_key(name, (str(self.rank), value), keys, timeout)

    def gather_by_key(
        self, name: str, own: tuple[str, bytes], keys: Mapping[str, int], timeout: float
    ) -> list[bytes]:
        """Do the same for processes that are identified by keys instead of ranks.

        Args:
            name: a unique name of the exchange.
            own: the key and the value of this process.
            keys: the keys of all processes, with their ranks.
            timeout: the time limit in seconds.
        """
        timeout = timeout or math.inf

        def exchange(answer: Answer[list[bytes]]) -> list[bytes]:
            store = self._exchange(answer, name, own, keys, timeout)
            return [bytes(value) for value in store.multi_get(list(keys))]

        return self.call(exchange, name, timeout)

    def _exchange(
        self,
        answer: Answer[_T],
        name: str,
        own: tuple[str, bytes],
        keys: Mapping[str, int],
        timeout: float,
    ) -> Store:
        """Set this process's value, wait for the values of all keys, and return their store."""
        began = time.monotonic()
        store = answer.note(PrefixStore(name, self._store))
        key, value = own
        if store.check([key]):  # after a failure, the values of all ranks remain
            for rank in keys.values():
                self.check_present(rank, name)
        else:
            store.set(key, value)  # type: ignore[arg-type]
            if store.add("count", 1) == len(keys):
                store.set("complete", "1")
        look = began + min(_PATIENCE, timeout)
        pause = _SHORTEST
        # Not wait(), which would block other threads that use the store.
        while not store.check(["complete"]):
            if answer.cancelled():
                raise CancelledError
            now = time.monotonic()
            if now >= look:
                missing = [rank for key, rank in keys.items() if not store.check([key])]
                if not missing:  # a process ended between its value and the count
                    break
                for rank in missing:
                    self.check_present(rank, name)
                if now >= began + timeout:
                    names = "rank" if len(missing) == 1 else "ranks"
                    raise DistStoreError(
                        f"rank {self.rank}: Timed out waiting {timeout:g} seconds for {names} "
                        f"{', '.join(map(self._name_of, missing))} of {len(keys)} in {name!r}"
                    )
                look = min(now + _PATIENCE, began + timeout)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        return store

    def check_present(self, rank: int, name: str) -> None:
        """Raise NcclRemoteError if a rank of an exchange no longer takes part."""
        if reason := self._gone(rank):
            raise NcclRemoteError(
                f"rank {self.rank}: rank {rank} has died or has left the job, and does not take "
                f"part in {name!r}: {reason}",
                _REMOTE_ERROR,
                name,
                self.rank,
            )

    def call(self, function: Callable[[Answer[_T]], _T], name: str, timeout: float) -> _T:
        """Return the result of a function that calls the store, which may never answer.

        Args:
            function: takes the Answer of the call, and returns if that is cancelled.
            name: the name of the exchange.
            timeout: the time limit in seconds.
        """

        def named(answer: Answer[_T]) -> _T:
            with self._naming_store(name):
                return function(answer)

        timeout = timeout or math.inf
        answer = ask(named)
        self._pending.add(answer)  # type: ignore[arg-type]
        if self._cancelled:  # cancel() may have missed it
            answer.cancel()
        try:
            if not answer.arrives(timeout):
                raise DistStoreError(
                    f"rank {self.rank}: {_description(self._store)} has not answered for "
                    f"{timeout:g} seconds during {name!r}; the process that hosts it may be stopped"
                )
            return answer.result()
        except CancelledError:
            raise DistBackendError(
                f"rank {self.rank}: the group was closed while it connected"
            ) from None
        finally:
            answer.cancel()
            self._pending.discard(answer)

    @contextmanager
    def _naming_store(self, name: str) -> Iterator[None]:
        try:
            yield
        except DistNetworkError as error:
            raise DistNetworkError(
                f"rank {self.rank}: {_description(self._store)} is gone during {name!r}; the "
                f"rank that hosted it has left or died: {error}"
            ) from error

    def cancel(self) -> None:
        """End all exchanges, on other threads as well, and refuse further ones."""
        self._cancelled = True
        for answer in list(self._pending):
            answer.cancel()

    @property
    def is_pending(self) -> bool:
        """Whether a thread is in an exchange."""
        return bool(self._pending)


def without_prefix(store: Store) -> Store:
    """Return the store below the prefixes of a store."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def of_attempt(store: Store) -> Store:
    """Return a store without the keys of earlier attempts of torchrun.

    torchrun restarts ranks with the same store, in which the keys of the failed ranks remain. With
    several nodes, their agents do not count the same restarts, so attempts cannot be distinguished.

    Args:
        store: the store of a group.

    Returns:
        The store, with a prefix if it is that of torchrun on one node.
    """
    env, base = os.environ, without_prefix(store)
    restarts = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    if (
        restarts == "0"
        or env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        or env.get("GROUP_WORLD_SIZE") != "1"
        or not isinstance(base, TCPStore)
        or str(base.port) != env.get("MASTER_PORT")
    ):
        return store
    return PrefixStore(f"restart {restarts}", store)


def _description(store: Store) -> str:
    store = without_prefix(store)
    if isinstance(store, TCPStore):
        return f"the job's store at {store.host}:{store.port}"
    return f"the job's {type(store).__name__}"
