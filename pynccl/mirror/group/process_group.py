"""ProcessGroup: the ranks and communicators of a group, and how it issues operations."""

from __future__ import annotations

import functools
import threading
import time
import zlib
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl import _C, nccl
from pynccl._internal.arguments import wrong_type
from pynccl._internal.membership import connect_pair, group_config, unique_ids
from pynccl._internal.rendezvous import Rendezvous
from pynccl.errors import NcclError
from pynccl.mirror.base.backend import PROVIDERS, BackendConfig, timeout_of
from pynccl.mirror.base.checks import check_tensor, real
from pynccl.mirror.base.errors import (
    BackendError,
    BackendTimeoutError,
    DistStoreError,
    translated,
)
from pynccl.mirror.base.job import Job
from pynccl.mirror.base.operators import OPERATORS, resolve
from pynccl.mirror.group.comm_stream import Call, CommStream, close_all, run_all
from pynccl.mirror.group.pair import Pair
from pynccl.mirror.group.work import Work
from pynccl.raw import NCCL_UNIQUE_ID_BYTES

__all__ = ["ProcessGroup"]

_GRACE = 2.0  # seconds for connections in progress when the group is destroyed
_PAIR_CTAS = 8
_TIMEOUT = 8  # ncclTimeout


class Options:
    """Communicator configuration and stream priority, from ``pg_options``.

    Args:
        given: None, a :class:`pynccl.nccl.Config`, or torch's ``ProcessGroupNCCL.Options``.

    Raises:
        TypeError: given has another type.
        ValueError: the configuration requests communicators that are nonblocking or share
            resources.
    """

    def __init__(self, given: Any) -> None:
        self.high_priority = bool(getattr(given, "is_high_priority_stream", False))
        self.config: nccl.Config | None = None
        if isinstance(given, nccl.Config):
            self.config = given
            if given.blocking == 0:
                raise ValueError(
                    "pg_options: Config(blocking=0) is not supported by process groups, which "
                    "wait for each call to complete; Config(init_timeout=...) limits the time to "
                    "create a communicator"
                )
            if 1 in (given.split_share, given.shrink_share):
                raise ValueError(
                    "pg_options: Config(split_share=1) and Config(shrink_share=1) are not "
                    "supported by process groups: aborting a group would end the operations "
                    "of its parent"
                )
        elif hasattr(given, "config"):
            self.config = _copy_config(given.config)
        elif given is not None and not hasattr(given, "is_high_priority_stream"):
            raise TypeError(
                "pg_options: expected a pynccl.nccl.Config or a ProcessGroupNCCL.Options, got "
                f"{type(given).__name__}"
            )


def _copy_config(given: Any) -> nccl.Config:
    """Copy the fields that concern one group, except split_share: groups are aborted separately."""
    undefined = -(2**31)
    config = nccl.Config()
    for name in ("cga_cluster_size", "min_ctas", "max_ctas", "net_name"):
        value = getattr(given, name, None)
        if value not in (None, "", undefined):
            setattr(config, name, value)
    return config


class ProcessGroup(_C.ProcessGroup):
    """See torch.distributed.ProcessGroup. A group of ranks that communicate with each other.

    Created by :func:`pynccl.init_process_group`, :func:`pynccl.new_group` and
    :func:`pynccl.split_group`, not by programs. Operations are functions of :mod:`pynccl` that take
    the group, for example ``pynccl.all_reduce(tensor, group=group)``. The C++ base class owns the
    rank, the size and the CommStreams.

    Args:
        job: the job of the ranks; the group uses a prefix of its store.
        ranks: the global ranks, in group order.
        rank: this process's rank in the group; -1 if it is not a member.
        name: a name that is unique in the job.
        config: the backends.
        timeout: the timeout of the unique id exchange and of each operation.
        options: the options of the communicators.
        desc: a description of the group.
        device_id: the device of this rank.
    """

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
        self._barriers = 0  # number of monitored barriers so far
        self.splits = 0
        self.store = PrefixStore(f"{self.group_name}/", job.store)
        self.rendezvous = Rendezvous(self.store, rank, job.gone)
        # One thread creates the communicator of a device type.
        self._opening = {kind: threading.RLock() for kind in config.device_backend_map}
        self._pairs: dict[tuple[str, int], Pair] = {}  # by device type and peer
        self._pair_ids: list[bytes] = []  # on CPUs, for all pairs
        if self.bound_device_id is not None and self.bound_device_id.type == "cuda":
            self._use_own_for_transfers("cuda")

    def name(self) -> str:
        """Return the name of the backend.

        Returns:
            ``"host"``, ``"nccl"`` or ``"cpu:host,cuda:nccl"``.
        """
        return self.config.name

    def get_backend(self, device: torch.device | None = None) -> nccl.Communicator:
        """Return the communicator for a device: see :func:`pynccl.get_backend_impl`.

        None selects the device that the group is bound to, or the device type of its only backend.
        Available since torch 2.14.
        """
        if device is None:
            kinds = list(self.config.device_backend_map)
            if self.bound_device_id is None and len(kinds) > 1:
                raise ValueError(
                    "device: the process group has multiple backend implementations, for "
                    f"{' and '.join(kinds)}; pass the device to select one"
                )
            device = self.bound_device_id or torch.device(kinds[0])
        if not isinstance(device, torch.device):
            raise wrong_type("device", "a torch.device", device)
        return self.comm_stream(device).comm

    def get_group_store(self) -> Store:
        """Return the store of this group.

        Returns:
            A ``PrefixStore`` over the store of the job.
        """
        return self.store

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """See :func:`pynccl.monitored_barrier`."""
        limit = timeout_of(timeout, self.config)
        store = PrefixStore(f"monitored barrier/{self._barriers}", self.store)
        self._barriers += 1
        rank = self.rank()
        if rank == 0:
            self._collect(store, limit, wait_all_ranks)
            return
        store.set(str(rank), "1")
        try:
            store.wait(["go"], max(limit, timedelta(milliseconds=1)))
        except RuntimeError as error:
            raise _timed_out(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
                "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
                rank,
            ) from error

    def _collect(self, store: Store, limit: timedelta, wait_all_ranks: bool) -> None:
        """Wait for the other ranks of a monitored barrier, on rank 0."""
        if limit <= timedelta(0):
            raise _timed_out("Rank 0 timed out in monitoredBarrier after 0 ms", 0)
        others = [str(rank) for rank in range(1, self.size())]
        missing: list[str] = []
        try:
            if others:
                store.wait(others, max(limit, timedelta(milliseconds=1)))
        except RuntimeError:
            missing = [rank for rank in others if not store.check([rank])]
        if missing:
            milliseconds = int(limit.total_seconds() * 1000)
            names = ", ".join(missing if wait_all_ranks else missing[:1])
            ranks = "Ranks" if wait_all_ranks else "Rank"
            raise _timed_out(
                f"{ranks} {names} failed to pass monitoredBarrier in {milliseconds} ms", 0
            )
        store.set("go", "1")

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.config.device_backend_map]

    @property
    def object_device(self) -> str:
        """The device type for transfers of Python objects."""
        kinds = self.config.device_backend_map
        return "cpu" if "cpu" in kinds else next(iter(kinds))

    def red_op(self, op: Any, tensor: torch.Tensor) -> nccl.RedOp:
        """Return the NCCL operator for a reduction: see resolve()."""

        def pre_mul_sum(factor: Any, dtype: torch.dtype) -> nccl.RedOp:
            return self.comm_stream(tensor.device).pre_mul_sum(factor, dtype)

        return resolve(op, tensor, pre_mul_sum)

    def issue(self, call: Call) -> Work | None:
        """Issue an operation on the communicator of the group.

        Returns:
            The Work of an asynchronous operation, else None.

        Raises:
            BackendError: NCCL or the driver failed.
            TypeError, ValueError, RuntimeError: an argument is wrong, or the group has ended.
        """
        try:
            return self.comm_stream(call.tensor.device).issue(call)
        except BackendError:
            raise
        except (TypeError, ValueError, RuntimeError):
            for name, value in call.arguments.items():
                if isinstance(value, torch.Tensor):
                    self.check_usable(value, name)
                else:
                    for index, tensor in enumerate(value):
                        self.check_usable(tensor, f"{name}[{index}]")
            raise

    def check_usable(self, tensor: torch.Tensor, name: str, *, in_pair: bool = False) -> None:
        """Check that an operation of this group can use a tensor.

        Args:
            tensor: the tensor.
            name: the argument, for the error text.
            in_pair: whether the operation uses a communicator of two ranks, perhaps on a device
                other than that of the group's.

        Raises:
            RuntimeError: no backend of this group supports its device.
            ValueError: it is sparse, not contiguous, on a device other than the communicator's, or
                of a dtype that NCCL lacks; or the group has ended.
        """
        check_tensor(tensor, name)
        self.provider(tensor.device, name)
        comm_stream = None if in_pair else self._comm_stream(tensor.device.type)
        _C.check_tensor(name, real(tensor), None if comm_stream is None else comm_stream.comm)

    def comm_stream(self, device: torch.device) -> CommStream:
        """Return the CommStream for a device's tensors, creating it on the first call.

        Raises:
            RuntimeError: no backend of this group supports the device.
            ValueError: the group has ended.
        """
        found = self._comm_stream(device.type)
        return self._open(device) if found is None else found

    def adopt(self, comm_stream: CommStream) -> None:
        """Take ownership of a CommStream created by a split."""
        self._set_comm_stream(comm_stream.device.type, comm_stream)

    def transfer(
        self, sends: bool, tensor: torch.Tensor, peer: int, *, async_op: bool = False
    ) -> Work | None:
        """Issue a send or a receive outside a batch.

        On GPUs, if the group is bound to one, transfers use the group's communicator, as in torch.
        Otherwise they use the communicator of their direction between the two ranks.

        Args:
            sends: whether to send.
            tensor: the tensor to send or receive into.
            peer: the peer's rank in the group.
            async_op: whether to return the Work.

        Returns:
            The Work of an asynchronous transfer, else None.

        Raises:
            RuntimeError: no backend of this group supports the device.
            ValueError: the group has ended, the peer is this rank, or the tensor cannot be used.
        """
        if peer == self.rank():
            raise ValueError(
                f"{'dst' if sends else 'src'}: rank {peer} of the group is this rank; NCCL "
                "transfers data from a rank to itself only if send and receive are grouped: pass "
                "both to batch_isend_irecv"
            )
        on_group = tensor.device.type == "cuda" and self.bound_device_id is not None
        self.check_usable(tensor, "tensor", in_pair=not on_group)
        data, result = real(tensor), [] if sends else [tensor]

        def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
            transfer = comm.send if sends else comm.recv
            transfer(data, peer if on_group else 1 - comm.rank, stream=stream)

        kind = "send" if sends else "recv"
        source = None if sends else peer
        call = Call(kind, tensor, enqueue, result, {"tensor": tensor}, async_op, source)
        if on_group:
            return self.comm_stream(tensor.device).issue(call)
        return self._pair_with(tensor.device, peer).issue(call, sends)

    def _pair_with(self, device: torch.device, peer: int) -> Pair:
        self._check_valid()
        key = device.type, peer
        connect = functools.partial(self._connect_pair, device, peer)
        connected = functools.partial(self._set_pair, device.type, peer)
        return self._pairs.setdefault(key, Pair(connect, connected, self.timeout))

    def provider(self, device: torch.device, name: str | None = None) -> str:
        """Return the provider for a device type: ``"cuda"`` or ``"host"``.

        Args:
            device: the device.
            name: the argument with a tensor on the device, for the error text.

        Raises:
            RuntimeError: no backend of this group supports the device.
        """
        backend = self.config.device_backend_map.get(device.type)
        if backend is None:
            argument = "" if name is None else f"{name}: "
            raise RuntimeError(
                f"{argument}No backend type associated with device type {device.type}: the group's "
                f"backend is {self.config.name!r}"
            )
        return PROVIDERS[backend]

    def eager_device(self) -> torch.device | None:
        """Return the device whose communicator is created eagerly, or None."""
        if self.bound_device_id is not None:
            return self.bound_device_id
        only_cpus = list(self.config.device_backend_map) == ["cpu"]
        return torch.device("cpu") if only_cpus else None

    def open_eagerly(self, timeout: timedelta | None = None) -> None:
        """Create the communicator of eager_device(), if any.

        Args:
            timeout: how long to wait for the other ranks; None is the group's timeout.
        """
        device = self.eager_device()
        if device is not None:
            self._open(device, timeout)

    def _new_ids(self, device: torch.device) -> bytes:
        """Return compressed unique ids for a device type: the group's, and on CPUs all pairs'.

        On CPUs an id costs nothing and compresses well. Knowing the ids of all pairs, two ranks can
        connect without the store, which disappears with the rank that hosts it.
        """
        pairs = self.size() * (self.size() - 1) if device.type == "cpu" else 0
        return zlib.compress(unique_ids(device, 1 + pairs))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations: see :func:`pynccl.set_timeout`."""
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout: expected a datetime.timedelta, got {timeout!r}")
        self.timeout = timeout  # first, for communicators that other threads are creating
        for comm_stream in self.comm_streams().values():
            comm_stream.set_timeout(timeout)
        for pair in list(self._pairs.values()):
            pair.set_timeout(timeout)

    def shutdown(self) -> None:
        """Finish pending operations and free the communicators: see close_all()."""
        close_all(self.detach("it was destroyed"))

    def abort(self) -> None:
        """Abort and free the communicators."""
        run_all(comm_stream.abort for comm_stream in self.detach("it was aborted"))

    def leave(self) -> None:
        """Free the communicators at process exit, without waiting for other ranks."""
        comm_streams = self.detach("it was destroyed")
        run_all(comm_stream.abort for comm_stream in comm_streams if not comm_stream.blocks)
        close_all(comm_stream for comm_stream in comm_streams if comm_stream.blocks)

    def detach(self, reason: str) -> list[CommStream]:
        """Reject all further operations.

        Args:
            reason: the reason in the error texts.

        Returns:
            The CommStreams, for the caller to close.
        """
        comm_streams = list(self.comm_streams().values())
        pairs, until = list(self._pairs.values()), time.monotonic() + _GRACE
        for pair in pairs:
            pair.finish_connecting(until)
        self.rendezvous.cancel()
        for pair in pairs:
            comm_streams += pair.close()
        self._pairs.clear()
        self._invalidate(reason)
        return comm_streams

    def disable(self, reason: str) -> None:
        """Reject all further operations, but release nothing."""
        self._invalidate(reason, keep=True)

    def _open(self, device: torch.device, timeout: timedelta | None = None) -> CommStream:
        """Exchange a unique id through the store, and create the CommStream if there is none."""
        self.provider(device)  # raises on every rank without a backend for the device
        device = _concrete(device)
        with self._opening[device.type], translated(NcclError):
            if (found := self._comm_stream(device.type)) is not None:
                return found
            ids = self.rendezvous.broadcast(
                f"{device.type}/communicator",
                range(self.size()),
                functools.partial(self._new_ids, device),
                (timeout or self.timeout).total_seconds(),
            )
            unique_id, *id_pairs = _divided(zlib.decompress(ids), NCCL_UNIQUE_ID_BYTES)
            if device.type == "cpu":
                self._pair_ids = _divided(b"".join(id_pairs), 2 * NCCL_UNIQUE_ID_BYTES)
            config = self._new_config(device)
            comm = self._communicator(self.size(), unique_id, self.rank(), device, config)
            comm_stream = self.make_comm_stream(comm, device)
            self.adopt(comm_stream)
            return comm_stream

    def _communicator(
        self, size: int, unique_id: bytes, rank: int, device: torch.device, config: nccl.Config
    ) -> nccl.Communicator:
        store = self.job.store
        return nccl.Communicator(size, unique_id, rank, config=config, device=device, store=store)

    def _new_config(self, device: torch.device) -> nccl.Config:
        """Return the configuration of a new communicator for a device."""
        return group_config(
            self.options.config,
            timeout=self.timeout.total_seconds(),
            on_cpu=device.type == "cpu",
        )

    def make_comm_stream(self, comm: nccl.Communicator, device: torch.device) -> CommStream:
        """Create a CommStream with this group's options and its name in the flight record."""
        named = self.group_desc if self.group_desc != "undefined" else self.group_name
        comm._set_name(named)
        return CommStream(comm, device, self.timeout, high_priority=self.options.high_priority)

    def _connect_pair(self, device: torch.device, peer: int) -> dict[bool, CommStream]:
        """Create the CommStreams to and from another rank, keyed by whether this rank sends."""
        device = _concrete(device)
        seconds = self.timeout.total_seconds()
        low, high = sorted((self.rank(), peer))
        known = self._pair_ids if device.type == "cpu" else []
        known_ids = known[high * (high - 1) // 2 + low] if known else b""

        def create(unique_id: bytes, rank: int) -> nccl.Communicator:
            return self._communicator(2, unique_id, rank, device, self._pair_config(device))

        with translated(NcclError):
            try:
                comms = connect_pair(
                    self.rendezvous, peer, device, seconds, create=create, known=known_ids
                )
            except DistStoreError as error:
                text = f"{error}: it has not called the matching operation"
                raise BackendTimeoutError(text, _TIMEOUT, "transfer", self.rank()) from None
        return {sends: self.make_comm_stream(comm, device) for sends, comm in comms.items()}

    def _pair_config(self, device: torch.device) -> nccl.Config:
        """Return the group's configuration; on GPUs with few CTAs, since pairs share the device."""
        config = self._new_config(device)
        if device.type != "cpu" and config.max_ctas is None:
            config.max_ctas = max(_PAIR_CTAS, config.min_ctas or 0)
        return config

    def __repr__(self) -> str:
        return (
            f"<pynccl.ProcessGroup {self.group_name!r} rank {self.rank()} of {self.size()} "
            f"({self.config.name})>"
        )


def _timed_out(text: str, rank: int) -> BackendTimeoutError:
    return BackendTimeoutError(f"[Rank {rank}]: {text}", _TIMEOUT, "monitored_barrier", rank)


def _divided(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _concrete(device: torch.device) -> torch.device:
    """Return the device with an index."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


_C.set_group_classes(torch.Tensor, ProcessGroup, list(OPERATORS.items()))
