"""Functions with a known overlap or a known fault, for the tests of the overlap lab."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pynccl import nccl
from pynccl.tools import lab
from tests.support import gpu
from tests.support.rank import Rank


class Load:
    """The load of all planted functions of this process."""

    seconds = 0.02  # on an idle machine, a sleep exceeds its time by less than 1 %


Enqueue = Callable[[Any], object]


def sleep(rank: Rank, seconds: float) -> Enqueue:
    """A sleep, on GPUs a kernel: CUDA runs the host functions of all streams one after another."""
    if rank.provider == "host":
        return lab.Sleep(seconds)
    return lambda stream: gpu.keep_busy(seconds, stream.handle, rank.device)


class Planted(NamedTuple):
    """Arguments of lab.overlap()."""

    compute: Enqueue
    communicate: Enqueue
    options: dict[str, Any]


def independent(rank: Rank, share: float = 1.0, **options: Any) -> Planted:  # noqa: ANN401
    """A communication that takes this share of the compute's time, concurrently."""
    return Planted(sleep(rank, Load.seconds), sleep(rank, Load.seconds * share), options)


def by_event(rank: Rank, hidden: float, **options: Any) -> Planted:  # noqa: ANN401
    """A communication as long as the compute, which waits for all but this share of it.

    Its end is an all_reduce, so that the ranks wait for each other in it.
    """
    ready = rank.event()
    data = rank.memory.put(_ones())

    def compute(stream: nccl.Stream) -> None:
        if hidden < 1:
            sleep(rank, Load.seconds * (1 - hidden))(stream)
        ready.record(stream)
        if hidden > 0:
            sleep(rank, Load.seconds * hidden)(stream)

    def communicate(stream: nccl.Stream) -> None:
        stream.wait(ready)
        sleep(rank, Load.seconds * 0.99)(stream)
        rank.comm.all_reduce(data, nccl.MAX, stream=stream)

    return Planted(compute, communicate, options)


def one_stream(rank: Rank) -> Planted:
    stream = rank.stream()
    return independent(rank, compute_stream=stream, communication_stream=stream)


def stream_of_the_other(rank: Rank) -> Planted:
    """A communication that ignores the stream that it is called with."""
    stream = rank.stream()
    return Planted(
        sleep(rank, Load.seconds),
        lambda _: sleep(rank, Load.seconds)(stream),
        {"compute_stream": stream},
    )


def default_stream(rank: Rank) -> Planted:
    """A compute on CPUs' default stream, which is the thread."""
    return Planted(lambda _: time.sleep(Load.seconds), sleep(rank, Load.seconds), {})


def synchronising(rank: Rank, which: str) -> Planted:
    """One function, called first, waits on the host for its stream."""

    def waiting(stream: nccl.Stream) -> None:
        sleep(rank, Load.seconds)(stream)
        stream.synchronize()

    functions: list[Enqueue] = [sleep(rank, Load.seconds), sleep(rank, Load.seconds)]
    functions[which == "communication"] = waiting
    return Planted(*functions, {"first": which})


def locked(rank: Rank) -> Planted:
    """Both need a lock. As with SMs occupied by one of two kernels, no stream waits for another.

    The functions run on the threads of the streams.
    """
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            time.sleep(Load.seconds)

    def hold_later() -> None:
        time.sleep(0.05 * Load.seconds)  # the compute has the lock first, on all ranks
        hold()

    def compute(stream: nccl.Stream) -> None:
        stream.launch(hold)

    def communicate(stream: nccl.Stream) -> None:
        stream.launch(hold_later)

    load = lab.Sleep(3 * Load.seconds)
    return Planted(compute, communicate, {"loads": (load, load)})


class Bus:
    """A resource shared by communication and loads: its users slow the communication."""

    def __init__(self) -> None:
        self.users: list[str] = []

    def load(self, kind: str, seconds: float) -> Enqueue:
        """A load that uses the bus for a time."""

        def run() -> None:
            self.users.append(kind)
            time.sleep(seconds)
            self.users.remove(kind)

        return lambda stream: stream.launch(run)

    def communicate(self, factors: dict[str, float], stream: nccl.Stream) -> None:
        """A communication whose time is multiplied by the factor of the bus's user."""

        def run() -> None:
            time.sleep(Load.seconds / 4)  # work launched on the other stream has begun
            factor = max((factors[kind] for kind in self.users), default=1.0)
            time.sleep(Load.seconds * factor)

        stream.launch(run)


def contended(rank: Rank, memory: float, arithmetic: float) -> Planted:
    """A communication slowed by these factors by a memory-bound and a compute-bound load."""
    bus = Bus()
    factors = {"memory": memory, "arithmetic": arithmetic}
    return Planted(
        bus.load("memory" if memory > arithmetic else "arithmetic", Load.seconds),
        functools.partial(bus.communicate, factors),
        {"loads": tuple(bus.load(kind, 4 * Load.seconds) for kind in factors)},
    )


# Kind and reason of the verdict, the function that plants the overlap, and its arguments.
VERDICTS: dict[str, tuple[tuple[str, str], Callable[..., Planted], tuple[object, ...]]] = {
    "full": (("hidden", ""), by_event, (1.0,)),
    "half": (("partly hidden", "event"), by_event, (0.5,)),
    "none": (("serialised", "event"), by_event, (0.0,)),
    "host": (("serialised", "synchronisation"), synchronising, ("compute",)),
    "one stream": (("serialised", "same stream"), one_stream, ()),
    "longer": (("partly hidden", "longer than the compute"), independent, (2.0,)),
}


def measure(
    rank: Rank,
    make: Callable[..., Planted],
    args: tuple[object, ...] = (),
    options: Mapping[str, Any] | None = None,
    seconds: float = Load.seconds,
) -> lab.Row:
    """The row of planted functions with loads of this many seconds, on a rank."""
    Load.seconds = seconds
    planted = make(rank, *args)
    both = {**planted.options, **(options or {})}
    return lab.overlap(planted.compute, planted.communicate, comm=rank.comm, **both)


def _ones() -> Any:  # noqa: ANN401
    import numpy as np

    return np.ones(16, np.float32)
