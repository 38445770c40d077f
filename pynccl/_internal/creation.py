"""Communicator.from_store(), and the exchange of a unique id through a store."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, SupportsIndex

from pynccl import _C
from pynccl.errors import NcclRemoteError, NcclTimeoutError
from pynccl.libraries import resolve
from pynccl.store import Answer, ask

if TYPE_CHECKING:
    import pynccl.store
    from pynccl._C import Communicator, Config

__all__ = ["from_store", "share_id"]

_REMOTE_ERROR = 6  # ncclRemoteError
_PAUSE = 0.01  # seconds between polls of a store
_REPORT = 5.0  # seconds for a failure to reach the store


def from_store(
    store: pynccl.store.Store,
    rank: SupportsIndex,
    nranks: SupportsIndex,
    *,
    config: Config | None = None,
    provider: str | None = None,
    device: object = None,
) -> Communicator:
    """Create a communicator of the ranks that share a store.

        comm = nccl.Communicator.from_store(store, rank, nranks)

    All ranks call it. Rank 0 creates the unique id and shares it through the store. torch is not
    required.

    A store can serve several communicators: the Nth call of each rank creates the Nth communicator.
    All ranks must therefore create the communicators of a store in the same order, one at a time.
    For communicators of other ranks, and after a rank has restarted, use another store or
    PrefixStore. A call that raises TypeError or ValueError before it uses the store does not count.

    Args:
        store: a torch.distributed.Store shared by all ranks, or an object with its methods
            (:class:`pynccl.store.Store`). The communicator also uses it as ``store=`` of
            :class:`Communicator`.
        rank: this rank, from 0 to nranks - 1.
        nranks: the number of ranks.
        config: a Config; None uses the defaults. init_timeout limits the wait for the id, and then
            the creation of the communicator. Without it, the wait for the id is limited by timeout,
            and the creation by the library.
        provider: as for Communicator.
        device: as for Communicator.

    Returns:
        The Communicator.

    Raises:
        TypeError, ValueError: an invalid argument, or a setting that the library does not support.
        LibraryNotFoundError: the library of the provider was not found.
        NcclRemoteError: rank 0 failed to create the id; the text contains its error.
        NcclTimeoutError: rank 0 did not share the id in time, the store did not answer, or not all
            ranks joined within config.init_timeout.
        NcclError: see Communicator.
    """
    size, own, timeout = _C.check_creation(nranks, rank, config, store)
    with contextlib.suppress(ImportError, RuntimeError):  # raised by create() or the constructor
        resolve(provider, device)

    def create() -> bytes:
        return bytes(_C.get_unique_id(resolve(provider, device)[0]))

    unique_id = share_id(
        store, "pynccl/from_store", own, 0, create, timeout=timeout, function="from_store"
    )
    return _C.Communicator(
        size, unique_id, own, config=config, provider=provider, device=device, store=store
    )


def share_id(
    store: pynccl.store.Store,
    path: str,
    rank: int,
    source: int,
    create: Callable[[], bytes],
    *,
    timeout: float,
    function: str,
) -> bytes:
    """Share a unique id among ranks through a store: the Nth call of each rank shares the Nth id.

    Args:
        store: the store.
        path: the prefix of the keys.
        rank: this rank.
        source: the rank that creates the id.
        create: creates the id, on that rank.
        timeout: seconds to wait for the id, or infinity.
        function: the function that calls this one, for errors.

    Returns:
        The id.

    Raises:
        NcclRemoteError: the source failed to create the id.
        NcclTimeoutError: the source did not share it in time, or the store did not answer.
    """

    def exchange(answer: Answer[str], value: str | None) -> str:
        end = time.monotonic() + timeout
        noted = answer.note(store)
        key = f"{path}/{noted.add(f'{path}/calls/{rank}', 1)}"
        if value is not None:
            noted.set(key, value)
            return value
        late = False
        while not noted.check([key]):
            if answer.cancelled():
                raise CancelledError
            if late:
                raise NcclTimeoutError(
                    f"{function}: rank {source} did not share the unique id within {timeout:g} s "
                    f"(key {key!r} of the {type(store).__name__})",
                    function=function,
                    rank=rank,
                    missing=([source], "store"),
                )
            time.sleep(_PAUSE)
            late = time.monotonic() >= end  # a check that began earlier may have missed the id
        return bytes(noted.get(key)).decode()

    def exchange_within(seconds: float, value: str | None) -> str:
        answer = ask(lambda future: exchange(future, value))
        try:
            if not answer.arrives(seconds):
                raise NcclTimeoutError(
                    f"{function}: the {type(store).__name__} has not answered for {seconds:g} s; "
                    f"rank {rank} {'shares' if rank == source else 'waits for'} the unique id of "
                    f"rank {source} below {path!r}",
                    function=function,
                    rank=rank,
                )
            return answer.result()
        finally:
            answer.cancel()

    own = None
    if rank == source:
        try:
            own = json.dumps({"id": create().hex()})
        except Exception as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
            with contextlib.suppress(Exception):
                exchange_within(min(timeout, _REPORT), text)
            raise
    shared = json.loads(exchange_within(timeout, own))
    if "error" in shared:
        raise NcclRemoteError(
            f"{function}: rank {source} failed to create the unique id: {shared['error']}",
            _REMOTE_ERROR,
            function,
            rank,
        )
    return bytes.fromhex(shared["id"])
