"""The ranks of a run: a communicator of pynccl and a process group of torch in each process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

import pynccl
from benchmarks import engines
from benchmarks.libraries import Call, Distributed, Library, Pynccl
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import CudaClock, Elapsed, Figure, HostClock, Timer, figures, in_turns
from pynccl import nccl
from pynccl.testing import Rank

__all__ = ["Settings", "World"]

_TIMEOUT = timedelta(seconds=20)  # of the groups of other backends


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        sizes: the sizes in bytes.
        repeats: the samples of each library in a row.
        budget: the seconds that a sample should last.
        seconds: the time after which no new row begins.
        others: whether to measure pynccl as dist and the other backends of torch.distributed.
        unbuilt: why pynccl's backend cannot be measured, or ''.
    """

    device: str
    sizes: tuple[int, ...]
    repeats: int
    budget: float
    seconds: float
    others: bool
    unbuilt: str


class World:
    """The communicators, groups and clock of one rank.

    Attributes:
        rank, nranks: this rank and the number of ranks.
        provider: pynccl's provider, ``"cuda"`` or ``"host"``.
        comm: the communicator of pynccl.
        pynccl, torch: the libraries; torch is None if it cannot be measured.
        engine: torch's engine, as benchmarks.engines names it.
        refusal: why torch is None, or ''.
        others: the other libraries, if Settings.others.
        absent: why other libraries cannot be measured, by name.
        device: the device of the tensors.
        clock: times calls on the device.
    """

    def __init__(self, rank: Rank, settings: Settings) -> None:
        self.rank = rank.rank
        self.nranks = rank.world_size
        self.provider = "cuda" if settings.device == "cuda" else "host"
        self._url = rank.init_method
        # More threads would disturb the other ranks.
        torch.set_num_threads(1)
        if settings.device == "cuda":
            self.device = _take_gpu(self.rank, self.nranks)
            self.clock: HostClock = CudaClock()
        else:
            self.device = torch.device("cpu")
            self.clock = HostClock()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if settings.device == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            init_method=self._url,
            rank=self.rank,
            world_size=self.nranks,
        )
        unique_id = [bytes(nccl.get_unique_id(self.provider)) if self.rank == 0 else b""]
        dist.broadcast_object_list(unique_id, 0, device=torch.device("cpu"))
        self.comm = nccl.Communicator(
            self.nranks, unique_id[0], self.rank, provider=self.provider, device=self.device
        )
        self.pynccl = Pynccl("pynccl", self.comm, "torch")
        self.engine = engines.engine(None, self.device)
        self.torch: Distributed | None = Distributed(f"torch {self.engine}", dist)
        self._failed = False
        self.refusal = self._first_of_torch() if settings.device == "cuda" else ""
        if self.refusal:
            self.torch = None
        self.others: list[Distributed] = []
        self.absent: dict[str, str] = {}
        if settings.others:
            self._add_others(settings.unbuilt)

    @property
    def shares(self) -> bool:
        """Whether ranks share a GPU."""
        return self.device.type == "cuda" and self.nranks > torch.cuda.device_count()

    @property
    def libraries(self) -> list[Library]:
        """The libraries that can be measured, pynccl's communicator first."""
        return [self.pynccl, *([self.torch] if self.torch else []), *self.others]

    @property
    def folder(self) -> Path:
        """A folder for files, shared by the ranks."""
        return Path(self._url.removeprefix("file://")).parent

    @functools.cached_property
    def mirror(self) -> ModuleType:
        """The module pynccl, which all ranks initialize on first use."""
        pynccl.init_process_group(
            "nccl" if self.provider == "cuda" else "host",
            init_method=f"{self._url}-mirror",
            rank=self.rank,
            world_size=self.nranks,
        )
        return pynccl

    def maximum(self, values: list[float]) -> list[float]:
        """Return the maximum over the ranks of each value. All ranks call it and synchronize."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def barrier(self) -> None:
        self.maximum([0.0])

    def synchronize(self) -> None:
        """Wait for all work enqueued on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timer(self, call: Call, operations: int = 1) -> Timer:
        """Return a timer of one of a call's operations, by the clock of the device."""

        def measure(calls: int) -> Elapsed:
            seconds, host = self.clock.measure(call, calls)
            return Elapsed(seconds / operations, host and host / operations)

        return self.sampler(measure)

    def sampler(self, measure: Callable[[int], Elapsed]) -> Timer:
        """Return a timer that all ranks call, whose samples are the maxima over the ranks."""

        def sample(calls: int) -> Elapsed:
            self.barrier()
            found = measure(calls)
            self.synchronize()
            seconds, host = self.maximum([found.seconds, found.host or 0.0])
            return Elapsed(seconds, None if found.host is None else host)

        return sample

    def compare(
        self,
        timers: Mapping[str, Timer],
        calls: int,
        repeats: int,
        baseline: Callable[[str], str],
        **about: object,
    ) -> list[Figure]:
        """Sample each way in turns. All ranks call it.

        Args:
            timers: the timers by way.
            calls: the calls of a sample.
            repeats: the samples of each way.
            baseline: returns the way that a way is compared with.
            **about: further columns of the figures.
        """
        filled = {way: functools.partial(timer, calls) for way, timer in timers.items()}
        return figures(in_turns(filled, repeats), baseline, key="way", **about)

    def close(self) -> None:
        self.barrier()
        if "mirror" in vars(self):
            pynccl.destroy_process_group()
        self.comm.close()
        # Destroying a group whose NCCL communicator was not created blocks.
        if not self._failed:
            dist.destroy_process_group()

    def _first_of_torch(self, group: dist.ProcessGroup | None = None) -> str:
        """Create the communicator of a group of torch. Return why that fails, or ''."""
        reason = ""
        try:
            dist.all_reduce(torch.zeros(1, device=self.device), group=group)
            self.synchronize()
        except Exception as error:  # the other backends can still be measured
            reason = f"torch.distributed with {engines.engine(group, self.device)}: {error}"
        reason = self.agree(reason)
        self._failed |= bool(reason)
        return reason

    def agree(self, reason: str) -> str:
        """Return a reason if any rank has one, else ''. All ranks call it."""
        if self.maximum([float(bool(reason))]) == [0.0]:
            return ""
        return reason or "it failed on another rank"

    def _add_others(self, unbuilt: str) -> None:
        self.others.append(Distributed("pynccl as dist", self.mirror))
        for backend in engines.OTHERS[self.device.type]:
            reason = (unbuilt if backend == "pynccl" else "") or self._add(backend)
            if reason:
                self.absent[f"torch {backend}"] = reason

    def _add(self, backend: str) -> str:
        """Create a group with another backend of torch. Return why that fails, or ''."""
        reason, name, group = "", "", None
        try:
            engines.register(backend)
            group = dist.new_group(backend=backend, timeout=_TIMEOUT)
            name = engines.engine(group, self.device)
            if "(" in name and name.partition("(")[2] == self.engine.partition("(")[2]:
                reason = f"it is {name}, and {self.engine} is measured"
        except Exception as error:  # the other backends can still be measured
            reason = f"{type(error).__name__}: {error}"
        reason = self.agree(reason) or self._first_of_torch(group)
        if not reason:
            self.others.append(Distributed(f"torch {name}", dist, group))
        return reason


def _take_gpu(rank: int, nranks: int) -> torch.device:
    """Select this rank's GPU, and let NCCL share it with other ranks if necessary."""
    if not torch.cuda.is_available():
        raise BenchmarkError("this torch sees no GPU; use --device cpu")
    gpus = torch.cuda.device_count()
    if nranks > gpus:
        # NCCL reads this when the first communicator is created. Kernels that wait for each other
        # must fit on the GPU together, hence few CTAs.
        os.environ.setdefault("NCCL_MAX_CTAS", "4")
        if nccl.get_version("cuda") >= (2, 30, 0):
            os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        else:
            os.environ.setdefault("NCCL_HOSTID", f"rank-{rank}")
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    return device
