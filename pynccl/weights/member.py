"""The common state of senders and receivers: memory, communicators, buckets, the plan."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from pynccl.weights.broadcast_ring import BroadcastRing
from pynccl.weights.errors import WeightsError
from pynccl.weights.layout import Part, whole
from pynccl.weights.memory import Memory
from pynccl.weights.messages import Plan, Transport
from pynccl.weights.plan import Step, Unit, make_plan, make_steps
from pynccl.weights.progress import OnProgress
from pynccl.weights.shared_ring import SharedRing
from pynccl.weights.transfer import Bindings, Ring
from pynccl.weights.watch import Watcher, is_ending
from pynccl.weights.wire import Link
from pynccl.weights.world import World

__all__ = [
    "InterruptedTransferError",
    "Member",
    "checked_seconds",
    "finalize",
]

_LOOK = 0.05  # seconds between two checks of the connections


class InterruptedTransferError(WeightsError):
    """A connection was closed, or brought the end of the transfer."""


class Member:
    """The state of one member of a session.

    Args:
        timeout: of every wait, in seconds.
        device: the GPU, or None.
        progress: called during transfers.
    """

    def __init__(self, timeout: float, device: object, progress: OnProgress | None = None) -> None:
        self.timeout = timeout
        self.device = device
        self.progress = progress
        self.memory: Memory | None = None
        self.world: World | None = None
        self.ring: Ring | None = None
        self.bindings = Bindings()
        self.watcher = Watcher()
        self.steps: list[Step] = []
        self.units: list[Unit] = []  # of the plan, by their numbers
        self.layout: dict[str, Part] = {}  # of the whole tensors
        self.link: float | None = None  # the measured bandwidth
        self.bucket_bytes = 0
        self.direct_bytes = 0

    def set_plan(self, plan: Plan) -> None:
        """Build the steps that a message describes."""
        self.layout = {
            name: Part(dtype, shape, whole(shape))
            for layout in plan.senders
            for name, (dtype, shape, _) in layout.items()
        }
        self.bucket_bytes, self.direct_bytes = plan.bucket_bytes, plan.direct_bytes
        self.steps = make_plan(
            plan.senders,
            plan.wanted,
            bucket_bytes=self.bucket_bytes,
            direct_bytes=self.direct_bytes,
            order=plan.order,
        )
        self.units = sorted(unit for step in self.steps for unit, _ in step.units)
        self.bindings = Bindings()  # those of the previous plan's steps are not needed

    def steps_of(self, numbers: Sequence[int] | None) -> list[Step]:
        """The steps for some units only; None is all."""
        if numbers is None:
            return self.steps
        wanted = set(numbers)
        units = [unit for unit in self.units if unit.number in wanted]
        return make_steps(units, bucket_bytes=self.bucket_bytes, direct_bytes=self.direct_bytes)

    def form(
        self,
        ids: Sequence[bytes],
        links: Sequence[Link],
        *,
        sender: int | None,
        receiver: int | None,
        nreceivers: int,
        transport: Transport,
        measures: bool = False,
    ) -> None:
        """Create the communicators and the buckets.

        A thread creates the communicators: otherwise, the death of a member before it has connected
        would not be noticed before the time limit.

        Raises:
            NcclError: they cannot be created.
            InterruptedTransferError: a connection was closed.
        """
        if self.memory is None:
            raise WeightsError("the memory of the session is not known")
        provider = "host" if self.memory.on_host else "cuda"
        made: list[World | BaseException] = []
        abandoned = threading.Event()
        lock = threading.Lock()

        def make() -> None:
            try:
                world: World | BaseException = World(
                    ids,
                    sender=sender,
                    receiver=receiver,
                    nreceivers=nreceivers,
                    provider=provider,
                    device=self.device,
                    timeout=self.timeout,
                )
            except BaseException as error:
                world = error
            with lock:
                made.append(world)
                if abandoned.is_set() and isinstance(world, World):
                    world.abort()

        thread = threading.Thread(target=make, name="pynccl-weights-init", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_LOOK)
                if thread.is_alive() and any(map(is_ending, links)):
                    raise InterruptedTransferError("a member left while the others connected")
        except BaseException:  # including Ctrl-C
            with lock:
                abandoned.set()
                for world in made:
                    if isinstance(world, World):
                        world.abort()
            raise
        result = made[0]
        if isinstance(result, BaseException):
            raise result
        self.world = result
        self.link = None
        with self.watcher.watch(links, result.interrupt):
            kind = SharedRing if transport == "shared" else BroadcastRing
            self.ring = kind(result, self.memory, self.bucket_bytes)
            if measures:
                self.link = self.ring.probe()

    def drop_world(self) -> None:
        """Abort all operations; the next attempt creates new communicators and buckets."""
        if self.world is not None:
            self.world.abort()
        self.world = None
        self.ring = None

    def release(self) -> None:
        """End the thread and abort the communicators."""
        self.watcher.close()
        self.drop_world()

    def close(self) -> None:
        self.watcher.close()
        if self.ring is not None:
            self.ring.close()
        if self.world is not None:
            self.world.close()
        self.ring = None  # its windows belonged to the communicators
        self.world = None


def finalize(owner: object, what: str, release: Callable[[], bool]) -> weakref.finalize[..., Any]:
    """Free an object's resources, with a ResourceWarning, if it is collected before close().

    Args:
        owner: the object, which must not be reachable from release().
        what: its name in the warning.
        release: frees the resources; returns whether there was anything to free.
    """
    finalizer = weakref.finalize(owner, _released, what, release)
    finalizer.atexit = False  # a daemon thread may be in a call at exit
    return finalizer


def _released(what: str, release: Callable[[], bool]) -> None:
    if release():
        warnings.warn(f"unclosed {what}", ResourceWarning, stacklevel=2)


def checked_seconds(argument: str, seconds: object) -> float:
    """Check a time limit.

    Raises:
        TypeError, ValueError: it is not a positive number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{argument}: expected seconds, got {seconds!r}")
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"{argument}: {seconds} is not above 0 and at most {threading.TIMEOUT_MAX:g} seconds"
        )
    return float(seconds)
