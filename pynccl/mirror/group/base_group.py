"""BaseGroup: the ranks of a process group, its communicators, and the issue of its operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl import _C, nccl
from pynccl.errors import NcclError
from pynccl.mirror.base.backend import PROVIDERS, BackendConfig
from pynccl.mirror.base.errors import translate
from pynccl.mirror.base.store import broadcast_via_store
from pynccl.mirror.group.batch import Batch
from pynccl.mirror.group.comm_stream import CommStream
from pynccl.mirror.group.pair import Pair
from pynccl.mirror.group.record import OperationRecord
from pynccl.mirror.group.work import Work

__all__ = ["BaseGroup", "Options"]


class Options:
    """The communicators' configuration and their streams' priority, from ``pg_options``.

    Args:
        given: None, a :class:`pynccl.nccl.Config`, or torch's ``ProcessGroupNCCL.Options``.

    Raises:
        TypeError: it is something else.
    """

    def __init__(self, given: Any) -> None:
        self.high_priority = bool(getattr(given, "is_high_priority_stream", False))
        self.config: nccl.Config | None = None
        if given is None or isinstance(given, nccl.Config):
            self.config = given
        elif hasattr(given, "config"):
            self.config = _copy_config(given.config)
        elif not hasattr(given, "is_high_priority_stream"):
            raise TypeError(
                "pg_options: expected a pynccl.nccl.Config or a ProcessGroupNCCL.Options, got "
                f"{type(given).__name__}"
            )


def _copy_config(given: Any) -> nccl.Config:
    undefined = -(2**31)
    config = nccl.Config()
    for name in ("cga_cluster_size", "min_ctas", "max_ctas", "split_share", "net_name"):
        value = getattr(given, name, None)
        if value not in (None, "", undefined):
            setattr(config, name, value)
    return config


class BaseGroup(_C.ProcessGroup):
    """Some of the ranks, which can communicate with each other.

    The C++ part has the rank, the size, and the CommStreams.

    Args:
        store: common to all groups; the group uses it below a prefix of its own.
        ranks: the global ranks, in the order of the group.
        rank: this process's rank in the group; -1 where it is not in it.
        name: unique in the job.
        config: the backends.
        timeout: of the exchange of unique ids and, on CPUs, of each operation.
        options: of the communicators.
        desc: what the group is for, in words.
        device_id: the device of this rank.
    """

    _batch: Batch | None  # collects the operations of a coalescing manager

    def __init__(
        self,
        store: Store,
        ranks: list[int],
        rank: int,
        *,
        name: str,
        config: BackendConfig,
        timeout: timedelta,
        options: Options | None = None,
        desc: str = "undefined",
        device_id: torch.device | None = None,
    ) -> None:
        self.group_name = name
        self.group_desc = desc
        self.bound_device_id = device_id
        self.config = config
        self.ranks = ranks
        self.rank_of = {global_rank: rank for rank, global_rank in enumerate(ranks)}
        super().__init__(rank, self.rank_of)
        self.timeout = timeout
        self.options = options or Options(None)
        self.barriers = 0  # monitored ones so far
        self.splits = 0
        self.store = PrefixStore(f"{name}/", store)

    @property
    def object_device(self) -> str:
        """The type of the device that carries Python objects."""
        kinds = self.config.device_backend_map
        return "cpu" if "cpu" in kinds else next(iter(kinds))

    def issue(self, record: OperationRecord) -> Work | None:
        """Issue a collective, or add it to the batch that is being collected.

        Returns:
            The Work of an asynchronous operation, else None.
        """
        if self._batch is not None and self._batch.takes(record.kind):
            return self._batch.add(record)
        return self.comm_stream(record.tensor.device).issue(record)

    def comm_stream(self, device: torch.device) -> CommStream:
        """The CommStream for a device's tensors, made at the first call.

        Raises:
            RuntimeError: no backend of this group is for such devices.
            ValueError: the group has ended.
        """
        found = self._comm_stream(device.type)
        return self._open(device) if found is None else found

    def adopt(self, comm_stream: CommStream) -> None:
        """Take over a CommStream that was made elsewhere, by a split."""
        self._set_comm_stream(comm_stream.device.type, comm_stream)

    def pair(self, device: torch.device, peer: int) -> Pair:
        """The two CommStreams between this rank and another, one for each direction.

        Raises:
            RuntimeError: no backend of this group is for such devices.
            ValueError: the group has ended.
        """
        found = self._pair(device.type, peer)
        if found is None:
            connect = functools.partial(self._connect_to, device, peer)
            found = Pair(connect, self.provider(device) == "host")
            self._set_pair(device.type, peer, found)
        return found

    def provider(self, device: torch.device) -> str:
        """The library for a type of device: ``"cuda"`` or ``"host"``.

        Raises:
            RuntimeError: no backend of this group is for such devices.
        """
        backend = self.config.device_backend_map.get(device.type)
        if backend is None:
            raise RuntimeError(
                f"No backend type associated with device type {device.type}: the group's backend "
                f"is {self.config.name!r}"
            )
        return PROVIDERS[backend]

    def open_at_once(self) -> None:
        """Make the communicators that need not wait for the first operation."""
        if self.bound_device_id is not None:
            self._open(self.bound_device_id)
        elif list(self.config.device_backend_map) == ["cpu"]:
            self._open(torch.device("cpu"))

    def shutdown(self) -> None:
        """Let what was issued finish, and free the communicators."""
        for comm_stream in self._give_up("it was destroyed"):
            comm_stream.close()

    def abort(self) -> None:
        """Free the communicators at once."""
        for comm_stream in self._give_up("it was aborted"):
            comm_stream.abort()

    def leave(self) -> None:
        """Free the communicators without waiting for other ranks, at the end of the process."""
        for comm_stream in self._give_up("it was destroyed"):
            comm_stream.close() if comm_stream.blocks else comm_stream.abort()

    def forbid(self, reason: str) -> None:
        """Refuse every operation from now on, but release nothing."""
        self._invalidate(reason, keep=True)

    def _give_up(self, reason: str) -> list[CommStream]:
        comm_streams = list(self.comm_streams().values())
        for pair in self._pairs():
            comm_streams += pair.close()
        self._invalidate(reason)
        return comm_streams

    def _open(self, device: torch.device) -> CommStream:
        provider = self.provider(device)
        device = _concrete(device)
        unique_id = broadcast_via_store(
            self.store,
            f"{device.type}/communicator",
            self.rank(),
            self.size(),
            self.timeout,
            lambda: bytes(nccl.get_unique_id(provider)),
        )
        comm = self._communicator(self.size(), unique_id, self.rank(), device)
        comm_stream = self.make_comm_stream(comm, device)
        self.adopt(comm_stream)
        return comm_stream

    def _communicator(
        self, size: int, unique_id: bytes, rank: int, device: torch.device
    ) -> nccl.Communicator:
        try:
            return nccl.Communicator(
                size, unique_id, rank, config=self.options.config, device=device
            )
        except NcclError as error:
            raise translate(error) from None

    def make_comm_stream(self, comm: nccl.Communicator, device: torch.device) -> CommStream:
        """A CommStream with this group's options."""
        return CommStream(comm, device, self.timeout, high_priority=self.options.high_priority)

    def _connect_to(
        self, device: torch.device, peer: int, cancelled: Callable[[], bool]
    ) -> tuple[CommStream, CommStream]:
        """The CommStreams to and from another rank."""
        provider = self.provider(device)
        device = _concrete(device)
        low, high = sorted((self.rank(), peer))
        rank = int(self.rank() == high)
        ids = broadcast_via_store(
            self.store.clone(),  # type: ignore[attr-defined]  # a wait on a connection of its own blocks no other thread
            f"{device.type}/pair {low}-{high}",
            rank,
            2,
            self.timeout,
            lambda: b"".join(bytes(nccl.get_unique_id(provider)) for _ in range(2)),
            cancelled,
        )
        half = len(ids) // 2
        try:
            with nccl.group():
                up, down = (
                    self._communicator(2, unique_id, rank, device)
                    for unique_id in (ids[:half], ids[half:])
                )
        except NcclError as error:
            raise translate(error) from None
        made = self.make_comm_stream(up, device), self.make_comm_stream(down, device)
        return made if rank == 0 else (made[1], made[0])

    def __repr__(self) -> str:
        return (
            f"<pynccl.ProcessGroup {self.group_name!r} rank {self.rank()} of {self.size()} "
            f"({self.config.name})>"
        )


def _concrete(device: torch.device) -> torch.device:
    """A device with its index."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
