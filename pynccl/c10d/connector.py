"""Connector: makes the communicators of a backend, which exchange their ids through its store."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

import torch
from torch.distributed.distributed_c10d import PrefixStore

from pynccl import _C, memory, nccl
from pynccl._internal import membership
from pynccl.libraries import load
from pynccl.store import ask

__all__ = ["Connector", "leave_stores"]

_ALLOCATE = "the backend's allocate_tensor() or of pynccl.memory.torch_empty()"
_NOT_SHAREABLE = (
    f"is not memory that NCCL can share between ranks; use memory of {_ALLOCATE}. No rank has "
    "registered it"
)
_LONGEST_PAUSE = 0.02  # seconds between two looks at the store
_GRACE = 0.5  # seconds for a store to answer at the deadline
_EXIT_LIMIT = 1.0  # seconds for threads to leave the store when the process ends

_connectors: weakref.WeakSet[Connector] = weakref.WeakSet()
_in_store: set[Future[Any]] = set()  # what threads wait for

_T = TypeVar("_T")


def leave_stores() -> None:
    """Cancel what waits for a store: a thread that is in one when Python ends ends the process."""
    for connector in list(_connectors):
        connector.cancel()
    until = time.monotonic() + _EXIT_LIMIT
    while _in_store and time.monotonic() < until:
        time.sleep(0.002)


@dataclasses.dataclass
class _Pair:
    """The communicators between this rank and another that no operation has taken yet."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    made: dict[bool, nccl.Communicator] = dataclasses.field(default_factory=dict)


@functools.cache
def _device_pool() -> torch.cuda.MemPool:
    return memory.torch_pool()


def _provider(device: torch.device) -> str:
    return "host" if device.type == "cpu" else "cuda"


def _decode_handle(handle: str) -> list[Any]:
    host, process, token = json.loads(handle)
    bytes.fromhex(token)
    return [host, process, token]


class Connector:
    """Makes the communicators of one process group, on any thread.

    Args:
        store: of the group.
        rank: this process's rank in the group.
        size: the number of ranks.
        name: of the group, for the flight record.
        timeout: seconds, of the exchange of ids and of each operation.
        config: of the communicators.

    Attributes:
        timeout: as given.
        handle: names this rank to the others in a reconfiguration.
    """

    def __init__(
        self,
        store: Any,  # noqa: ANN401
        rank: int,
        size: int,
        *,
        name: str,
        timeout: float,
        config: nccl.Config | None,
    ) -> None:
        self.timeout = timeout
        self.handle = json.dumps([socket.gethostname(), os.getpid(), secrets.token_hex(16)])
        self._store = store
        self._base = store  # of the first configuration
        self._members = [self.handle]  # of a reconfigured group: the handles by rank
        self._uuids: set[int] = set()  # of the reconfigurations
        self._shrinks = 0
        self._rank = rank
        self._size = size
        self._name = name
        self._config = config
        self._pairs: dict[tuple[str, int | None, int], _Pair] = {}
        self._of_group: collections.Counter[str] = collections.Counter()  # made, by type of device
        self._cancelled = threading.Event()
        self._asked: set[Future[Any]] = set()  # what connect() waits for
        _connectors.add(self)

    def connect(self, device: torch.device, peer: int, sends: bool) -> nccl.Communicator:
        """Make a communicator; this waits for its other ranks.

        Args:
            device: of its tensors.
            peer: the other rank of a communicator of two; below 0 for one of the group.
            sends: whether this rank sends in the communicator of two.

        Raises:
            RuntimeError: the other ranks did not come in time, or the group was closed.
        """
        if peer < 0:
            # All ranks make those of several devices in the same order.
            name = f"group{self._of_group[device.type]}"
            unique_id = self._ids(device, name, 1, makes=self._rank == 0)
            try:
                made = self._make(self._size, unique_id, self._rank, device)
            except nccl.NcclTimeoutError as error:
                raise self._timed_out(error) from error
            self._of_group[device.type] += 1
            return self._set_up(made)
        # Both directions connect at once: the first operation of both ranks may be a send.
        pair = self._pairs.setdefault((device.type, device.index, peer), _Pair())
        with pair.lock:
            if sends not in pair.made:
                pair.made = self._connect_pair(device, peer)
                if self._cancelled.is_set():  # which has not seen them
                    self.cancel()
            return pair.made.pop(sends)

    def _connect_pair(self, device: torch.device, peer: int) -> dict[bool, nccl.Communicator]:
        """The communicators of both directions, by whether this rank sends."""
        low, high = sorted((self._rank, peer))
        lower = self._rank == low
        ids = self._ids(device, f"{low}and{high}", 2, makes=lower)
        try:
            made = membership.connect_pair(
                ids,
                lower=lower,
                device=device,
                timeout=self.timeout,
                create=lambda unique_id, rank: self._make(2, unique_id, rank, device),
            )
        except nccl.NcclTimeoutError as error:
            raise self._timed_out(error) from error
        return {sends: self._set_up(comm) for sends, comm in made.items()}

    def _make(
        self, size: int, unique_id: bytes, rank: int, device: torch.device
    ) -> nccl.Communicator:
        on_cpu = device.type == "cpu"
        return nccl.Communicator(
            size,
            unique_id,
            rank,
            config=membership.group_config(self._config, timeout=self.timeout, on_cpu=on_cpu),
            device=None if on_cpu else device,
            provider=_provider(device),
        )

    def _ids(self, device: torch.device, name: str, number: int, *, makes: bool) -> bytes:
        """New unique ids, which one rank makes and the others read from the store."""
        key = f"pynccl/{device.type}/{name}"
        if not makes:
            return self._get(key)
        provider = _provider(device)
        ids = b"".join(bytes(nccl.get_unique_id(provider)) for _ in range(number))
        self._set(key, ids)
        return ids

    def split(
        self,
        comm: nccl.Communicator,
        ranks: list[int],
        rank: int,
        *,
        store: Any,  # noqa: ANN401
        name: str,
        timeout: float,
        config: nccl.Config | None,
    ) -> tuple[Connector, nccl.Communicator] | None:
        """Split a communicator (ncclCommSplit): all its ranks call this.

        Args:
            comm: of this group.
            ranks: those of the new group.
            rank: this process's rank in it; below 0 where it is not in it.
            store: of the new group.
            name: of the new group.
            timeout: of the new group, in seconds.
            config: of the new communicators; None inherits that of ``comm``.

        Returns:
            The connector of the new group and its communicator; None where this rank is not in it.
        """
        made = comm.split(None if rank < 0 else min(ranks), rank, config=config)
        if made is None:
            return None
        connector = Connector(store, rank, len(ranks), name=name, timeout=timeout, config=config)
        return connector, connector._set_up(made)

    def can_allocate(self, device: torch.device) -> bool:
        """Whether :meth:`allocate` has memory for a device."""
        if device.type != "cpu" and torch.version.cuda is None:
            return False
        return load(_provider(device)).functions()["ncclMemAlloc"][1]

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Make a tensor on memory of ncclMemAlloc, not initialised.

        Args:
            size: the number of elements.
            dtype: of the tensor.
            device: of the tensor.

        Returns:
            A tensor of one dimension. Its memory is freed with the last tensor on it.

        Raises:
            LibraryNotFoundError: libnccl.so.2 was not found.
            MissingFunctionError: the library is older than NCCL 2.19.
            NcclError: the memory cannot be allocated.
        """
        if device.type != "cpu":
            with torch.cuda.use_mem_pool(_device_pool(), device):
                return torch.empty(size, dtype=dtype, device=device)
        if size == 0:
            return torch.empty(0, dtype=dtype)
        arena = _C.Arena.of(load("host"))
        nbytes = size * dtype.itemsize
        address = arena.allocate(nbytes)
        segment = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(segment, arena.deallocate, address).atexit = False
        return torch.frombuffer(segment, dtype=dtype)

    def register(self, comm: nccl.Communicator, tensor: torch.Tensor, owning: bool) -> nccl.Window:
        """Register the memory of a tensor as a window: all ranks call this.

        Args:
            comm: of this group.
            tensor: contiguous; of memory that NCCL can share between ranks.
            owning: whether the window keeps the tensor.

        Raises:
            ValueError: NCCL cannot register the memory of this or another rank; no rank has then.
        """
        memory = tensor.detach().flatten().view(torch.uint8)
        try:
            if owning:
                window = comm.register_window(memory)
            else:
                window = comm.register_window(
                    memory.data_ptr(), count=memory.numel(), dtype="uint8"
                )
        except ValueError as error:
            text = str(error).removeprefix("buffer: ")
            raise ValueError(f"tensor: {text.replace('mem_alloc()', _ALLOCATE)}") from error
        except nccl.NcclInvalidArgumentError as error:  # no rank has such memory
            raise ValueError(f"tensor: {_NOT_SHAREABLE}: {error}") from error
        if not window.handle:
            window.close()
            raise ValueError(f"tensor: {_NOT_SHAREABLE}")
        return window

    def shrunk(
        self,
        excluded: list[int],
        rank: int,
        *,
        name: str,
        timeout: float,
        config: nccl.Config | None,
    ) -> Connector:
        """The connector of a group without some of the ranks.

        Args:
            excluded: the ranks.
            rank: this process's rank in the new group.
            name: of the new group.
            timeout: of the new group, in seconds.
            config: of the new communicators.
        """
        self._shrinks += 1
        store = PrefixStore(f"pynccl/shrunk/{self._shrinks}", self._store)
        size = self._size - len(excluded)
        return Connector(store, rank, size, name=name, timeout=timeout, config=config)

    def shrink(
        self, comm: nccl.Communicator, excluded: list[int], *, aborts: bool, to: Connector
    ) -> nccl.Communicator | None:
        """Shrink a communicator (ncclCommShrink): its ranks that are left call this.

        Args:
            comm: of this group.
            excluded: the ranks that are not left.
            aborts: whether what is under way is aborted first.
            to: the connector of the new group.

        Returns:
            The communicator of the new group; None where its ranks have to meet in the store.
        """
        made = membership.shrunk(comm, excluded, aborts=aborts, config=to._config)
        return None if made is None else to._set_up(made)

    def reconfigured(
        self, uuid: int, handles: list[str] | set[str], hints: dict[str, str]
    ) -> tuple[Connector, int, int]:
        """The connector of the group with other ranks; meet() makes them meet.

        Args:
            uuid: another one at each call.
            handles: of all ranks: a list has them in the order of the ranks, a set is sorted.
            hints: none are known.

        Returns:
            The connector, this process's rank, and the number of ranks.

        Raises:
            TypeError, ValueError: an argument is wrong.
        """
        members = membership.ordered_members(
            uuid, handles, hints, own=self.handle, used=self._uuids, decode=_decode_handle
        )
        self._uuids.add(uuid)
        rank, size = members.index(self.handle), len(members)
        store = PrefixStore(f"pynccl/reconfigured/{uuid}", self._base)
        made = Connector(
            store, rank, size, name=self._name, timeout=self.timeout, config=self._config
        )
        made.handle, made._base, made._uuids = self.handle, self._base, self._uuids
        made._members = members
        return made, rank, size

    def meet(self) -> None:
        """Wait until all ranks of a reconfigured group have called this.

        Raises:
            RuntimeError: not all did so in time, or they were given different handles.
        """
        ordered = hashlib.sha256("\n".join(self._members).encode()).hexdigest().encode()
        # By the tokens, since processes that were given different handles can have the same rank.
        until = time.monotonic() + self.timeout
        self._set(f"member/{_decode_handle(self.handle)[-1]}", ordered)
        for rank, handle in enumerate(self._members):
            host, process, token = _decode_handle(handle)
            setter = f"rank {rank} (process {process} on {host})"
            if self._get(f"member/{token}", until, setter) != ordered:
                raise RuntimeError(
                    f"rank {self._rank}: rank {rank} was given other handles, or in another order"
                )

    def revoke(self, comm: nccl.Communicator) -> None:
        """Let the ranks that wait for this one in a communicator hear that it gives up."""
        if not comm.closed:
            _C.begin_recovery(comm)

    def rename(self, name: str, comms: list[nccl.Communicator]) -> None:
        """Give the group and its communicators another name in the flight record."""
        self._name = name
        for comm in self._all(comms):
            comm._set_name(name)

    def suspend(self, comms: list[nccl.Communicator]) -> None:
        """Suspend communicators of the group, and those that no operation has taken yet."""
        with nccl.group():
            for comm in self._all(comms):
                comm.suspend()

    def resume(self, comms: list[nccl.Communicator]) -> None:
        """Make the communicators usable again that suspend() has suspended."""
        with nccl.group():
            for comm in self._all(comms):
                comm.resume()

    def memory_stats(self, comms: list[nccl.Communicator]) -> dict[str, int]:
        """The memory of the communicators in bytes, by the names that torch uses."""
        every = [comm.memory_stats() for comm in self._all(comms)]
        return {
            "suspend": sum(stats.suspendable for stats in every),
            "suspended": int(any(stats.suspended for stats in every)),
            "persist": sum(stats.persistent for stats in every),
            "total": sum(stats.total for stats in every),
        }

    def error(self, comm: nccl.Communicator) -> str:
        """The name of the c10d::ErrorType of a communicator; "" where there is no error."""
        if comm.expired:
            return "TIMEOUT"
        error = None if comm.closed else comm.async_error()
        if error is None or isinstance(error, nccl.NcclInProgressError):
            return "COMM_ERROR" if comm.revoked else ""
        return "REMOTE_ERROR" if isinstance(error, nccl.NcclRemoteError) else "COMM_ERROR"

    def _all(self, comms: list[nccl.Communicator]) -> Iterator[nccl.Communicator]:
        yield from comms
        for pair in list(self._pairs.values()):
            yield from list(pair.made.values())

    def close(self, comm: nccl.Communicator) -> None:
        """Destroy a communicator whose operations are done; abort it where one has failed."""
        if comm.closed or comm.revoked or comm.expired or comm.async_error() is not None:
            comm.abort()
            return
        try:
            comm.close()
        except nccl.NcclError as error:  # torch would keep the group, which can do nothing more
            comm.abort()
            warnings.warn(f"pynccl: group {self._name!r} was aborted: {error}", stacklevel=1)

    def abort(self, comm: nccl.Communicator) -> None:
        """Free a communicator at once."""
        comm.abort()

    def cancel(self) -> None:
        """End connect() on other threads while it waits for the store, and free what is left."""
        self._cancelled.set()
        for answer in list(self._asked):
            answer.cancel()
        for pair in list(self._pairs.values()):
            for comm in list(pair.made.values()):
                comm.abort()

    def _set_up(self, comm: nccl.Communicator) -> nccl.Communicator:
        comm.timeout = self.timeout or None
        comm._set_name(self._name)
        return comm

    def _timed_out(self, why: object) -> RuntimeError:
        return RuntimeError(f"rank {self._rank} Timed out after {self.timeout:g} seconds: {why}")

    def _get(self, key: str, until: float | None = None, setter: str = "its other rank") -> bytes:
        """The value of a key, once it is set.

        Args:
            key: its name.
            until: when to give up, by time.monotonic(); None is after the timeout.
            setter: who sets it, for the error.
        """
        end = time.monotonic() + self.timeout if until is None else until

        def read(answer: Future[bytes]) -> bytes:
            pause = 0.0002
            # Not wait(): other threads cannot use the store meanwhile.
            while not self._store.check([key]):
                if answer.cancelled():
                    return b""
                if time.monotonic() > end:
                    raise self._timed_out(f"waiting for {key!r}: {setter} did not come")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            return bytes(self._store.get(key))

        return self._answered(read, key, end)

    def _set(self, key: str, value: bytes) -> None:
        """Set a key; this ends at the timeout as well."""
        until = time.monotonic() + self.timeout
        self._answered(lambda _: self._store.set(key, value), key, until)

    def _answered(self, call: Callable[[Future[_T]], _T], key: str, until: float) -> _T:
        """What a call of the store returns, which may never answer."""
        answer = ask(call)
        try:
            _in_store.add(answer)
            self._asked.add(answer)
            if self._cancelled.is_set():  # cancel() may have missed it
                answer.cancel()
            return answer.result(max(0.0, until - time.monotonic()) + _GRACE)
        except CancelledError:
            raise RuntimeError(
                f"rank {self._rank}: the group was closed while it connected"
            ) from None
        except FutureTimeoutError:
            why = "perhaps the process that hosts it is stopped or was killed"
            raise self._timed_out(f"the store has not answered for {key!r}, {why}") from None
        finally:
            answer.cancel()
            self._asked.discard(answer)
            _in_store.discard(answer)
