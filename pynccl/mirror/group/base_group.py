"""BaseGroup: the ranks of a process group, its communicators, and the issue of its operations."""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore

from pynccl import _C, nccl
from pynccl._internal.membership import connect_pair, group_config
from pynccl.errors import NcclError
from pynccl.mirror.base.backend import PROVIDERS, BackendConfig
from pynccl.mirror.base.checks import real
from pynccl.mirror.base.errors import (
    BackendTimeoutError,
    DistNetworkError,
    DistStoreError,
    translated,
)
from pynccl.mirror.base.job import Job
from pynccl.mirror.base.store import broadcast_via_store, check_present
from pynccl.mirror.group.batch import Batch
from pynccl.mirror.group.comm_stream import CommStream, close_all, run_all
from pynccl.mirror.group.pair import Pair
from pynccl.mirror.group.record import Call, OperationRecord
from pynccl.mirror.group.work import Work
from pynccl.raw import NCCL_UNIQUE_ID_BYTES

__all__ = ["BaseGroup", "Options"]

_GRACE = 2.0  # seconds for other ranks to connect when this one destroys the group
_CTAS_OF_PAIR = 8
_TIMEOUT = 8  # ncclTimeout


class Options:
    """The communicators' configuration and their streams' priority, from ``pg_options``.

    Args:
        given: None, a :class:`pynccl.nccl.Config`, or torch's ``ProcessGroupNCCL.Options``.

    Raises:
        TypeError: it is something else.
        ValueError: it asks for communicators that do not block, or that share their resources.
    """

    def __init__(self, given: Any) -> None:
        self.high_priority = bool(getattr(given, "is_high_priority_stream", False))
        self.config: nccl.Config | None = None
        if isinstance(given, nccl.Config):
            self.config = given
            if given.blocking == 0:
                raise ValueError(
                    "pg_options: Config(blocking=0) cannot be used by process groups: they would "
                    "have to wait until each call is done; Config(init_timeout=...) limits the "
                    "time in which a communicator is made"
                )
            if 1 in (given.split_share, given.shrink_share):
                raise ValueError(
                    "pg_options: Config(split_share=1) and Config(shrink_share=1) cannot be used "
                    "by process groups: a group that is aborted alone would end the operations of "
                    "its parent"
                )
        elif hasattr(given, "config"):
            self.config = _copy_config(given.config)
        elif given is not None and not hasattr(given, "is_high_priority_stream"):
            raise TypeError(
                "pg_options: expected a pynccl.nccl.Config or a ProcessGroupNCCL.Options, got "
                f"{type(given).__name__}"
            )


def _copy_config(given: Any) -> nccl.Config:
    """The fields that concern one group. Not split_share: groups are aborted alone."""
    undefined = -(2**31)
    config = nccl.Config()
    for name in ("cga_cluster_size", "min_ctas", "max_ctas", "net_name"):
        value = getattr(given, name, None)
        if value not in (None, "", undefined):
            setattr(config, name, value)
    return config


class BaseGroup(_C.ProcessGroup):
    """Some of the ranks, which can communicate with each other.

    The C++ part has the rank, the size, and the CommStreams.

    Args:
        job: that of the ranks; the group uses its store below a prefix of its own.
        ranks: the global ranks, in the order of the group.
        rank: this process's rank in the group; -1 where it is not in it.
        name: unique in the job.
        config: the backends.
        timeout: of the exchange of unique ids and of each operation.
        options: of the communicators.
        desc: what the group is for, in words.
        device_id: the device of this rank.
    """

    _batch: Batch | None  # collects the operations of a coalescing manager

    def __init__(
        self,
        job: Job,
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
        self.job = job
        self.barriers = 0  # monitored ones so far
        self.splits = 0
        self.store = PrefixStore(f"{self.group_name}/", job.store)
        self._ids_of_pairs: list[bytes] = []  # on CPUs those of all pairs, from the creation
        if self.bound_device_id is not None and self.bound_device_id.type == "cuda":
            self._use_own_for_transfers("cuda")

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

    def transfer(
        self, kind: str, tensor: torch.Tensor, peer: int, *, async_op: bool
    ) -> Work | None:
        """Issue a send or a receive outside a batch.

        On a device that the group is bound to it uses the communicator of the group, as torch
        does; else that of the direction between the two ranks.

        Args:
            kind: ``"send"`` or ``"recv"``.
            tensor: sent, or received into.
            peer: the other side's rank in the group.
            async_op: whether to return the Work.

        Raises:
            RuntimeError: no backend of this group is for such devices.
            ValueError: the group has ended.
        """
        device = tensor.device
        own = device.type == "cuda" and self.bound_device_id is not None
        # The ranks of a pair's communicators are those of the two, in the order of the group.
        calls = [Call(kind, real(tensor), peer if own else int(peer > self.rank()))]
        sends = kind == "send"
        record = OperationRecord(
            kind, tensor, calls, [] if sends else [tensor], async_op, None if sends else peer
        )
        if own:
            return self.comm_stream(device).issue(record)
        return self._pair_with(device, peer).issue(record)

    def _pair_with(self, device: torch.device, peer: int) -> Pair:
        found = self._pair(device.type, peer)
        if found is None:
            found = Pair(functools.partial(self._connect_pair, device, peer), self.timeout)
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

    def device_at_once(self) -> torch.device | None:
        """The device whose communicator need not wait for the first operation."""
        if self.bound_device_id is not None:
            return self.bound_device_id
        only_cpus = list(self.config.device_backend_map) == ["cpu"]
        return torch.device("cpu") if only_cpus else None

    def open_at_once(self, timeout: timedelta | None = None) -> None:
        """Make the communicator that need not wait for the first operation.

        Args:
            timeout: how long to wait for the other ranks; None is the group's own.
        """
        device = self.device_at_once()
        if device is not None:
            self._open(device, timeout)

    def new_ids(self, device: torch.device) -> bytes:
        """The unique ids for a type of device, compressed: of the group, on CPUs of all pairs too.

        There an id costs nothing, and its constant part compresses well. Two ranks then need no
        store, which may be gone with the rank that hosts it.
        """
        provider = self.provider(device)
        pairs = self.size() * (self.size() - 1) if provider == "host" else 0
        return zlib.compress(_unique_ids(provider, 1 + pairs))

    def open(self, device: torch.device, ids: bytes) -> CommStream:
        """Make the CommStream for a device's tensors, of new_ids() of one rank."""
        unique_id, *of_pairs = _divided(zlib.decompress(ids), NCCL_UNIQUE_ID_BYTES)
        if device.type == "cpu":
            self._ids_of_pairs = _divided(b"".join(of_pairs), 2 * NCCL_UNIQUE_ID_BYTES)
        config = self._new_config(device)
        with translated(NcclError):
            comm = self._communicator(self.size(), unique_id, self.rank(), device, config)
        comm_stream = self.make_comm_stream(comm, device)
        self.adopt(comm_stream)
        return comm_stream

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations: see :func:`pynccl.set_timeout`."""
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout: expected a datetime.timedelta, got {timeout!r}")
        self.timeout = timeout  # first: of communicators that other threads make meanwhile
        for comm_stream in self.comm_streams().values():
            comm_stream.set_timeout(timeout)
        for pair in self._pairs():
            pair.set_timeout(timeout)

    def shutdown(self) -> None:
        """Let what was issued finish, and free the communicators: see close_all()."""
        close_all(self.give_up("it was destroyed"))

    def abort(self) -> None:
        """Free the communicators at once."""
        run_all(comm_stream.abort for comm_stream in self.give_up("it was aborted"))

    def leave(self) -> None:
        """Free the communicators without waiting for other ranks, at the end of the process."""
        comm_streams = self.give_up("it was destroyed")
        run_all(comm_stream.abort for comm_stream in comm_streams if not comm_stream.blocks)
        close_all(comm_stream for comm_stream in comm_streams if comm_stream.blocks)

    def give_up(self, reason: str) -> list[CommStream]:
        """Refuse every operation from now on.

        Args:
            reason: for the text of the errors.

        Returns:
            The CommStreams, for the caller to close.
        """
        comm_streams = list(self.comm_streams().values())
        until = time.monotonic() + _GRACE
        for pair in self._pairs():
            comm_streams += pair.close(until)
        self._invalidate(reason)
        return comm_streams

    def forbid(self, reason: str) -> None:
        """Refuse every operation from now on, but release nothing."""
        self._invalidate(reason, keep=True)

    def _open(self, device: torch.device, timeout: timedelta | None = None) -> CommStream:
        """Exchange a unique id through the store, and make the CommStream."""
        self.provider(device)  # raises on each rank where there is none
        device = _concrete(device)
        ids = broadcast_via_store(
            self.store,
            f"{device.type}/communicator",
            self.rank(),
            range(self.size()),
            timeout or self.timeout,
            functools.partial(self.new_ids, device),
            self.job.gone,
        )
        return self.open(device, ids)

    def _communicator(
        self, size: int, unique_id: bytes, rank: int, device: torch.device, config: nccl.Config
    ) -> nccl.Communicator:
        store = self.job.store
        return nccl.Communicator(size, unique_id, rank, config=config, device=device, store=store)

    def _new_config(self, device: torch.device) -> nccl.Config:
        """The configuration of a new communicator for a device."""
        return group_config(
            self.options.config,
            timeout=self.timeout.total_seconds(),
            on_cpu=device.type == "cpu",
        )

    def make_comm_stream(self, comm: nccl.Communicator, device: torch.device) -> CommStream:
        """A CommStream with this group's options, named after it in the flight record."""
        named = self.group_desc if self.group_desc != "undefined" else self.group_name
        comm._set_name(named)
        comm_stream = CommStream(
            comm, device, self.timeout, high_priority=self.options.high_priority
        )
        return comm_stream

    def _connect_pair(
        self, device: torch.device, peer: int, closed: Callable[[], bool]
    ) -> dict[bool, CommStream]:
        """The CommStreams between this rank and another, by whether this rank sends on it.

        Both directions connect at once: the first transfer of both ranks may be a send.

        Args:
            device: of the tensors.
            peer: the other rank.
            closed: whether the group has ended.
        """
        device = _concrete(device)
        ids = self._exchanged_ids(device, peer, closed)
        config = self._config_of_pair(device)
        with translated(NcclError):
            made = connect_pair(
                ids,
                lower=self.rank() < peer,
                device=device,
                timeout=self.timeout.total_seconds(),
                create=lambda unique_id, rank: self._communicator(
                    2, unique_id, rank, device, config
                ),
            )
        return {sends: self.make_comm_stream(comm, device) for sends, comm in made.items()}

    def _exchanged_ids(self, device: torch.device, peer: int, closed: Callable[[], bool]) -> bytes:
        """Wait for the other rank, and return the two unique ids of the pair."""
        low, high = sorted((self.rank(), peer))
        known = self._ids_of_pairs if device.type == "cpu" else []
        ids = known[high * (high - 1) // 2 + low] if known else b""
        name = f"{device.type}/send and receive of {low} and {high}"

        def gone(rank: int) -> str:
            return "the group has ended" if closed() else self.job.gone(rank)

        try:
            ids = broadcast_via_store(
                self.store,
                name,
                self.rank(),
                (low, high),
                self.timeout,
                lambda: ids or _unique_ids(self.provider(device), 2),
                gone,
                connects=True,
            )
        except DistStoreError as error:
            text = f"{error}: it has not called the operation that belongs to that of this rank"
            raise BackendTimeoutError(text, _TIMEOUT, name, self.rank()) from None
        except DistNetworkError:  # the rank that hosts the store has left
            if not ids:
                raise
            check_present(peer, gone, name, self.rank())
        return ids

    def _config_of_pair(self, device: torch.device) -> nccl.Config:
        """The group's configuration; on GPUs with few CTAs, for many pairs share a device."""
        config = self._new_config(device)
        if device.type != "cpu" and config.max_ctas is None:
            config.max_ctas = max(_CTAS_OF_PAIR, config.min_ctas or 0)
        return config

    def __repr__(self) -> str:
        return (
            f"<pynccl.ProcessGroup {self.group_name!r} rank {self.rank()} of {self.size()} "
            f"({self.config.name})>"
        )


def _unique_ids(provider: str, count: int) -> bytes:
    return b"".join(bytes(nccl.get_unique_id(provider)) for _ in range(count))


def _divided(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _concrete(device: torch.device) -> torch.device:
    """A device with its index."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
