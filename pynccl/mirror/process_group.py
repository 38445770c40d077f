"""A process group: its ranks, its store, and a channel for each kind of device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl import _C, nccl
from pynccl.errors import NcclError
from pynccl.mirror.backend import PROVIDERS, BackendConfig
from pynccl.mirror.channel import Channel, Issue
from pynccl.mirror.errors import translate
from pynccl.mirror.meeting import meet
from pynccl.mirror.methods import Methods
from pynccl.mirror.pair import Pair
from pynccl.mirror.work import Work

if TYPE_CHECKING:
    from pynccl.mirror.coalescing import Batch

__all__ = ["Options", "ProcessGroup"]


class Options:
    """What ``pg_options`` says: the communicators' configuration, and their streams' priority.

    Args:
        given: None, a :class:`pynccl.nccl.Config`, or torch's ``ProcessGroupNCCL.Options``.
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


class _Gone(dict[str, Channel]):
    """The channels of a group that can no longer be used."""

    def __init__(self, reason: str, kept: object = None) -> None:
        super().__init__()
        self._reason = reason
        self._kept = kept

    def __missing__(self, _: str) -> NoReturn:
        raise ValueError(f"Invalid process group specified: {self._reason}")

    def get(self, _: str, default: object = None) -> NoReturn:
        self.__missing__("")


class ProcessGroup(_C.ProcessGroup, Methods):
    """Some of the ranks, which can communicate with each other."""

    _batch: Batch | None  # what collects operations now

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
        self._rank = rank
        self._channels: dict[str, Channel] = {}
        self._pairs: dict[tuple[str, int], Pair] = {}

    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def name(self) -> str:
        """The backend."""
        return self.config.name

    def get_group_store(self) -> Store:
        """The store that only this group uses."""
        return self.store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.config.device_backend_map]

    @property
    def object_device(self) -> str:
        """The kind of device that carries Python objects."""
        kinds = self.config.device_backend_map
        return "cpu" if "cpu" in kinds else next(iter(kinds))

    def run(
        self,
        name: str,
        tensor: torch.Tensor,
        issue: Issue,
        result: list[torch.Tensor],
        async_op: bool,
    ) -> Work | None:
        """Issue an operation: now, in the batch that is being collected, or asynchronously.

        Args:
            name: the operation's, for messages.
            tensor: the first of its tensors.
            issue: calls NCCL.
            result: the tensors that it writes.
            async_op: whether to return its work.
        """
        if self._batch is not None and self._batch.takes(name):
            return self._batch.add(name, tensor, issue, result, async_op)
        channel = self.channel(tensor.device)
        if async_op:
            return channel.start(name, issue, tensor, result)
        channel.call(name, issue)
        return None

    def channel(self, device: torch.device) -> Channel:
        """The channel that moves a device's tensors, made when it is first asked for.

        Raises:
            RuntimeError: no backend of this group is for such devices.
        """
        found = self._channels.get(device.type)
        return found if found is not None else self._open(device)

    def existing_channels(self) -> dict[str, Channel]:
        """The channels that were made, by the kind of their device."""
        return dict(self._channels)

    def adopt(self, channel: Channel) -> None:
        """Take over a channel that was made elsewhere, by a split."""
        self._channels[channel.device.type] = channel
        self._connect(channel.device.type, channel)

    def pair(self, device: torch.device, peer: int) -> Pair:
        """The two channels between this rank and another, one for each direction."""
        key = (device.type, peer)
        if key not in self._pairs:
            self._channels.get(device.type)  # refuses where the group is gone
            connect = functools.partial(self._meet_pair, device, peer)
            connected = functools.partial(self._connect_pair, *key)
            self._pairs[key] = Pair(connect, connected, self.provider(device) == "host")
        return self._pairs[key]

    def provider(self, device: torch.device) -> str:
        """The library for a kind of device.

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
        for channel in self._give_up("it was destroyed"):
            channel.close()

    def abort(self) -> None:
        """Free the communicators at once."""
        for channel in self._give_up("it was aborted"):
            channel.abort()

    def leave(self) -> None:
        """Free the communicators without waiting for other ranks, at the end of the process."""
        for channel in self._give_up("it was destroyed"):
            channel.close() if channel.blocks else channel.abort()

    def forbid(self, reason: str) -> None:
        """Refuse every use from now on, and let nothing go."""
        self._channels = _Gone(reason, (self._channels, self._pairs))
        self._pairs = {}
        self._disconnect()

    def _give_up(self, reason: str) -> list[Channel]:
        channels = list(self._channels.values())
        for pair in self._pairs.values():
            channels += pair.close()
        self._pairs = {}
        self._channels = _Gone(reason)
        self._disconnect()
        return channels

    def _open(self, device: torch.device) -> Channel:
        provider = self.provider(device)
        device = _concrete(device)
        unique_id = meet(
            self.store,
            f"{device.type}/communicator",
            self._rank,
            self.size(),
            self.timeout,
            lambda: bytes(nccl.get_unique_id(provider)),
        )
        comm = self._communicator(self.size(), unique_id, self._rank, device)
        channel = self.make_channel(comm, device)
        self.adopt(channel)
        return channel

    def _communicator(
        self, size: int, unique_id: bytes, rank: int, device: torch.device
    ) -> nccl.Communicator:
        try:
            return nccl.Communicator(
                size, unique_id, rank, config=self.options.config, device=device
            )
        except NcclError as error:
            raise translate(error) from None

    def make_channel(self, comm: nccl.Communicator, device: torch.device) -> Channel:
        """A channel with this group's options."""
        return Channel(comm, device, self.timeout, high_priority=self.options.high_priority)

    def _meet_pair(
        self, device: torch.device, peer: int, given_up: Callable[[], bool]
    ) -> tuple[Channel, Channel]:
        """The channels to and from another rank."""
        provider = self.provider(device)
        device = _concrete(device)
        low, high = sorted((self._rank, peer))
        rank = int(self._rank == high)
        ids = meet(
            self.store.clone(),  # type: ignore[attr-defined]  # a wait on a connection of its own blocks no other thread
            f"{device.type}/pair {low}-{high}",
            rank,
            2,
            self.timeout,
            lambda: b"".join(bytes(nccl.get_unique_id(provider)) for _ in range(2)),
            given_up,
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
        channels = self.make_channel(up, device), self.make_channel(down, device)
        return channels if rank == 0 else (channels[1], channels[0])

    def __repr__(self) -> str:
        return (
            f"<pynccl.ProcessGroup {self.group_name!r} rank {self._rank} of {self.size()} "
            f"({self.config.name})>"
        )


def _concrete(device: torch.device) -> torch.device:
    """A device with its index."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
