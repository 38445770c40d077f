"""Connector: creates the communicators of a backend, with unique ids from its store."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import hashlib
import json
import secrets
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore

from pynccl import _C, memory, nccl
from pynccl._internal import membership
from pynccl._internal.processes import Process, publish
from pynccl._internal.rendezvous import Rendezvous, without_prefix
from pynccl.libraries import load

__all__ = ["Connector", "leave_stores"]

_ALLOCATE = "the backend's allocate_tensor() or pynccl.memory.torch_empty()"
_NOT_SHAREABLE = (
    f"is not memory that NCCL can share between ranks; use memory from {_ALLOCATE}. No rank has "
    "registered it"
)
_EXIT_LIMIT = 1.0  # seconds for threads to leave the store at process exit

_connectors: weakref.WeakSet[Connector] = weakref.WeakSet()


def leave_stores() -> None:
    """Cancel waits for stores: at exit, a thread in a store would terminate the process."""
    connectors = list(_connectors)
    for connector in connectors:
        connector.cancel()
    until = time.monotonic() + _EXIT_LIMIT
    while any(connector.is_in_store for connector in connectors) and time.monotonic() < until:
        time.sleep(0.002)


@dataclasses.dataclass
class _Pair:
    """The communicators between this rank and a peer that are not in use yet."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    comms: dict[bool, nccl.Communicator] = dataclasses.field(default_factory=dict)


@functools.cache
def _device_pool() -> torch.cuda.MemPool:
    return memory.torch_pool()


@dataclasses.dataclass
class _Handle:
    """A process in a reconfiguration."""

    host: str
    process: Process
    token: str

    @classmethod
    def decode(cls, text: str) -> _Handle:
        host, process, token = json.loads(text)
        bytes.fromhex(token)
        return cls(host, Process(*process), token)

    def __str__(self) -> str:
        return f"(process {self.process.pid} on {self.host})"


class Connector:
    """Creates the communicators of one process group, on any thread.

    Args:
        store: the store of the group.
        rank: this process's rank in the group.
        size: the number of ranks.
        name: the name of the group in the flight record.
        timeout: the time limit in seconds for the id exchange and for each operation.
        config: the configuration of the communicators.
        gone: returns why a rank no longer takes part, or "" if it does or if that is unknown. None:
            the ranks publish their processes in the store.
        name_of: returns the name of a rank in the errors of late exchanges.

    Attributes:
        gone: returns why a rank no longer takes part, as for the argument.
        timeout: as given.
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
        gone: Callable[[int], str] | None = None,
        name_of: Callable[[int], str] = str,
    ) -> None:
        self.timeout = timeout
        self._store = store
        self._job_store = without_prefix(store)  # one for all groups, because a thread polls it
        self._base = store  # the store of the first configuration
        self._members: list[str] = []  # the handles of a reconfigured group, by rank
        self._uuids: set[int] = set()  # the reconfigurations so far
        self._shrinks = 0
        self._rank = rank
        self._size = size
        self._name = name
        self._config = config
        self._pairs: dict[tuple[str, int | None, int], _Pair] = {}
        self._group_counts: collections.Counter[str] = collections.Counter()  # count by device type
        if gone is None:
            gone = publish(PrefixStore("pynccl/processes", store), rank)
        self.gone = gone
        self._rendezvous = Rendezvous(PrefixStore("pynccl", store), rank, gone, name_of)
        self._cancelled = False
        _connectors.add(self)

    @functools.cached_property
    def handle(self) -> str:
        """Identifies this rank in a reconfiguration."""
        return json.dumps([socket.gethostname(), Process.own(), secrets.token_hex(16)])

    def connect(self, device: torch.device, peer: int, sends: bool) -> nccl.Communicator:
        """Create a communicator, waiting for its other ranks.

        Args:
            device: the device of its tensors.
            peer: the other rank of a pair's communicator; negative for a group's communicator.
            sends: whether this rank sends in the pair's communicator.

        Raises:
            RuntimeError: the other ranks did not join in time, or the group was closed.
        """
        if peer < 0:
            # All ranks create the communicators of several devices in the same order.
            unique_id = self._rendezvous.broadcast(
                f"{device.type}/group{self._group_counts[device.type]}",
                range(self._size),
                lambda: membership.unique_ids(device, 1),
                self.timeout,
            )
            comm = self._create(self._size, unique_id, self._rank, device)
            self._group_counts[device.type] += 1
            return self._set_up(comm)
        # Both directions connect together, because the first operation of both ranks may be a send.
        pair = self._pairs.setdefault((device.type, device.index, peer), _Pair())
        with pair.lock:
            if sends not in pair.comms:
                pair.comms = self._connect_pair(device, peer)
                if self._cancelled:  # before they were stored
                    self.cancel()
            return pair.comms.pop(sends)

    def _connect_pair(self, device: torch.device, peer: int) -> dict[bool, nccl.Communicator]:
        """Create the communicators of both directions, keyed by whether this rank sends."""
        comms = membership.connect_pair(
            self._rendezvous,
            peer,
            device,
            self.timeout,
            create=lambda unique_id, rank: self._create(2, unique_id, rank, device),
        )
        return {sends: self._set_up(comm) for sends, comm in comms.items()}

    def _create(
        self, size: int, unique_id: bytes, rank: int, device: torch.device
    ) -> nccl.Communicator:
        config = membership.group_config(
            self._config, timeout=self.timeout, on_cpu=device.type == "cpu"
        )
        return nccl.Communicator(
            size, unique_id, rank, config=config, device=device, store=self._job_store
        )

    def split(
        self,
        comm: nccl.Communicator,
        ranks: list[int],
        rank: int,
        store: Any,  # noqa: ANN401
        *,
        name: str,
        timeout: float,
        config: nccl.Config | None,
    ) -> tuple[Connector, nccl.Communicator] | None:
        """Split a communicator (ncclCommSplit). All of its ranks call this.

        Args:
            comm: a communicator of this group.
            ranks: the ranks of the new group.
            rank: this process's rank in the new group; negative if it is not a member.
            store: the store of the new group.
            name: the name of the new group.
            timeout: the timeout of the new group, in seconds.
            config: the configuration of its communicators; None inherits that of ``comm``.

        Returns:
            The connector of the new group and its communicator, or None if this rank is not a
            member.
        """
        child = comm.split(None if rank < 0 else min(ranks), rank, config=config)
        if child is None:
            return None
        connector = self._among(
            ranks, store=store, rank=rank, name=name, timeout=timeout, config=config
        )
        return connector, connector._set_up(child)

    def _among(self, ranks: Sequence[int], **options: Any) -> Connector:  # noqa: ANN401
        """Return the connector of a group of some of this group's ranks."""
        return Connector(size=len(ranks), gone=self.gone_among(ranks), **options)

    def gone_among(self, ranks: Sequence[int]) -> Callable[[int], str]:
        """Return the function gone() of a group of some of this group's ranks."""
        return lambda rank: self.gone(ranks[rank])

    def can_allocate(self, device: torch.device) -> bool:
        """Return whether :meth:`allocate` supports a device."""
        if device.type != "cpu" and torch.version.cuda is None:
            return False
        return load(membership.provider_of(device)).functions()["ncclMemAlloc"][1]

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate an uninitialized tensor with ncclMemAlloc.

        Args:
            size: the number of elements.
            dtype: the dtype of the tensor.
            device: the device of the tensor.

        Returns:
            A one-dimensional tensor. Its memory is freed with the last tensor that uses it.

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
        """Register the memory of a tensor as a window. All ranks call this.

        Args:
            comm: a communicator of this group.
            tensor: a contiguous tensor, in memory that NCCL can share between ranks.
            owning: whether the window keeps the tensor alive.

        Raises:
            ValueError: NCCL cannot register the memory of this or another rank. No rank has
                registered it then.
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
        """Return the connector of a group without some of the ranks.

        Args:
            excluded: the excluded ranks.
            rank: this process's rank in the new group.
            name: the name of the new group.
            timeout: the timeout of the new group, in seconds.
            config: the configuration of its communicators.
        """
        self._shrinks += 1
        store = PrefixStore(f"pynccl/shrunk/{self._shrinks}", self._store)
        left = [old for old in range(self._size) if old not in excluded]
        return self._among(left, store=store, rank=rank, name=name, timeout=timeout, config=config)

    def shrink(
        self, comm: nccl.Communicator, excluded: list[int], *, aborts: bool, to: Connector
    ) -> nccl.Communicator | None:
        """Shrink a communicator (ncclCommShrink). Its surviving ranks call this.

        Args:
            comm: a communicator of this group.
            excluded: the excluded ranks.
            aborts: whether to abort pending operations first.
            to: the connector of the new group.

        Returns:
            The communicator of the new group, or None if its ranks must rendezvous through the
            store.
        """
        child = membership.shrunk(comm, excluded, aborts=aborts, config=to._config)
        return None if child is None else to._set_up(child)

    def reconfigured(
        self, uuid: int, handles: list[str] | set[str], hints: dict[str, str]
    ) -> tuple[Connector, int, int]:
        """Return the connector of the reconfigured group, whose ranks then call meet().

        Args:
            uuid: a number that is unique to the reconfiguration.
            handles: the handles of all ranks: a list in rank order, or a set, which is sorted.
            hints: must be empty; none are supported.

        Returns:
            The connector, this process's rank, and the number of ranks.

        Raises:
            TypeError, ValueError: an invalid argument.
        """
        members = self._ordered_members(uuid, handles, hints)
        self._uuids.add(uuid)
        rank, size = members.index(self.handle), len(members)
        decoded = [_Handle.decode(member) for member in members]
        connector = Connector(
            PrefixStore(f"pynccl/reconfigured/{uuid}", self._base),
            rank,
            size,
            name=self._name,
            timeout=self.timeout,
            config=self._config,
            gone=lambda rank: decoded[rank].process.end(),
            name_of=lambda rank: f"{rank} {decoded[rank]}",
        )
        connector.handle, connector._base, connector._uuids = self.handle, self._base, self._uuids
        connector._members = members
        return connector, rank, size

    def _ordered_members(self, uuid: object, handles: object, hints: object) -> list[str]:
        """Check the arguments of a reconfiguration, and return the handles in rank order."""
        if isinstance(uuid, bool) or not isinstance(uuid, int):
            raise TypeError(f"uuid: expected an integer, got {uuid!r}")
        if uuid in self._uuids:
            raise ValueError(f"uuid: {uuid} was used before; each reconfiguration needs a new one")
        if hints:
            raise ValueError(f"hints: pynccl supports none, got {hints!r}")
        if not isinstance(handles, (list, set, frozenset)):
            raise TypeError(f"handles: expected a list or a set, got {type(handles).__name__}")
        for handle in handles:
            if not isinstance(handle, str):
                raise TypeError(f"handles: expected strings, got {handle!r}")
            try:
                _Handle.decode(handle)
            except (TypeError, ValueError):
                raise ValueError(f"handles: {handle!r} is not a handle of pynccl") from None
        ordered = handles if isinstance(handles, list) else sorted(handles)
        if len(set(ordered)) != len(ordered):
            raise ValueError("handles: a handle is repeated")
        if self.handle not in ordered:
            raise ValueError(f"handles: this rank's handle is not among the {len(ordered)} given")
        return ordered

    def meet(self) -> None:
        """Wait until all ranks of a reconfigured group have called this.

        Raises:
            RuntimeError: a rank did not do so in time, or was given different handles.
        """
        ordered = hashlib.sha256("\n".join(self._members).encode()).hexdigest().encode()
        # By token, because processes with different handles can have the same rank.
        keys = {_Handle.decode(member).token: rank for rank, member in enumerate(self._members)}
        own = _Handle.decode(self.handle).token
        values = self._rendezvous.gather_by_key("members", (own, ordered), keys, self.timeout)
        for rank, value in enumerate(values):
            if value != ordered:
                raise RuntimeError(
                    f"rank {self._rank}: rank {rank} was given different handles, or a different "
                    "order"
                )

    def revoke(self, comm: nccl.Communicator) -> None:
        """Make ranks fail that wait for this one in a communicator."""
        if not comm.closed:
            _C.begin_recovery(comm)

    def rename(self, name: str, comms: list[nccl.Communicator]) -> None:
        """Rename the group and its communicators in the flight record."""
        self._name = name
        for comm in self._all(comms):
            comm._set_name(name)

    def suspend(self, comms: list[nccl.Communicator]) -> None:
        """Suspend communicators of the group, including those not in use yet."""
        with nccl.group():
            for comm in self._all(comms):
                comm.suspend()

    def resume(self, comms: list[nccl.Communicator]) -> None:
        """Resume communicators suspended by suspend()."""
        with nccl.group():
            for comm in self._all(comms):
                comm.resume()

    def memory_stats(self, comms: list[nccl.Communicator]) -> dict[str, int]:
        """Return the memory of the communicators in bytes, by torch's names."""
        every = [comm.memory_stats() for comm in self._all(comms)]
        return {
            "suspend": sum(stats.suspendable for stats in every),
            "suspended": int(any(stats.suspended for stats in every)),
            "persist": sum(stats.persistent for stats in every),
            "total": sum(stats.total for stats in every),
        }

    def error(self, comm: nccl.Communicator) -> str:
        """Return the c10d::ErrorType of a communicator by name, or "" if there is no error."""
        if comm.expired:
            return "TIMEOUT"
        error = None if comm.closed else comm.async_error()
        if error is None or isinstance(error, nccl.NcclInProgressError):
            return "COMM_ERROR" if comm.revoked else ""
        return "REMOTE_ERROR" if isinstance(error, nccl.NcclRemoteError) else "COMM_ERROR"

    def _all(self, comms: list[nccl.Communicator]) -> Iterator[nccl.Communicator]:
        yield from comms
        for pair in list(self._pairs.values()):
            yield from list(pair.comms.values())

    def close(self, comm: nccl.Communicator) -> None:
        """Destroy a communicator whose operations are complete, or abort it if it has failed."""
        if comm.closed or comm.revoked or comm.expired or comm.async_error() is not None:
            comm.abort()
            return
        try:
            comm.close()
        except nccl.NcclError as error:  # an exception would make torch keep the unusable group
            comm.abort()
            warnings.warn(f"pynccl: group {self._name!r} was aborted: {error}", stacklevel=1)

    def cancel(self) -> None:
        """Cancel connect() on other threads, and abort the communicators that are not in use."""
        self._cancelled = True
        self._rendezvous.cancel()
        for pair in list(self._pairs.values()):
            for comm in list(pair.comms.values()):
                comm.abort()

    @property
    def is_in_store(self) -> bool:
        """Whether a thread waits for the store."""
        return self._rendezvous.is_pending

    def _set_up(self, comm: nccl.Communicator) -> nccl.Communicator:
        comm.timeout = self.timeout or None
        comm._set_name(self._name)
        return comm
