"""The common state of senders and receivers: memory, communicators, buckets, the plan."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

from pynccl.weights.errors import WeightsError
from pynccl.weights.layout import Part, whole
from pynccl.weights.memory import Library, Memory, Tensor, memory_for
from pynccl.weights.messages import Plan, WorldPlace
from pynccl.weights.plan import Step, Unit, make_plan
from pynccl.weights.ring import Ring
from pynccl.weights.watch import Watcher, is_ending
from pynccl.weights.wire import Link
from pynccl.weights.world import World

__all__ = ["InterruptedTransferError", "Member", "checked_seconds", "finalize"]

_LOOK = 0.05  # seconds between two checks of the connections


class InterruptedTransferError(WeightsError):
    """A connection was closed, or received the end of the transfer."""


class Member:
    """The state of one member of a session: see :class:`WeightSender` for the arguments."""

    def __init__(self, timeout: float, library: Library | None, device: int | None) -> None:
        self.timeout = timeout
        self._library = library
        self._device = device
        self._memory: Memory | None = None
        self.ring: Ring | None = None
        self.steps: list[Step] = []
        self.units: list[Unit] = []  # of the plan, by their numbers
        self.layout: dict[str, Part] = {}  # of the whole tensors
        self._watcher = Watcher()
        self._world: World | None = None
        self._plan: Plan | None = None

    @property
    def memory(self) -> Memory:
        if self._memory is None:
            raise WeightsError("the memory of the session is unknown")
        return self._memory

    @property
    def provider(self) -> str:
        return "host" if self.memory.on_host else "cuda"

    def memory_for(self, tensor: Tensor | None, provider: str | None = None) -> Memory:
        """The memory of the session: that of a tensor, or of the provider if there is none."""
        if self._memory is None:
            self._memory = memory_for(tensor, provider, self._library, self._device)
        return self._memory

    def set_plan(self, plan: Plan) -> None:
        """Build the steps that a message describes.

        Raises:
            ValueError: the layouts do not match.
        """
        wanted = [plan.layouts[number] for number in plan.receivers]
        self.steps = make_plan(
            plan.senders, wanted, plan.order, plan.bucket_bytes, plan.direct_bytes
        )
        self.units = sorted(unit for step in self.steps for unit, _ in step.units)
        self.layout = {
            name: Part(dtype, shape, whole(shape))
            for layout in plan.senders
            for name, (dtype, shape, _) in layout.items()
        }
        self._plan = plan

    def form(self, place: WorldPlace, links: Sequence[Link], *, is_sender: bool) -> None:
        """Replace the communicators and the buckets.

        A thread creates the communicators: otherwise, the death of a member before it has connected
        would not be noticed before the time limit.

        Raises:
            NcclError: they cannot be created.
            InterruptedTransferError: a connection was closed.
        """
        self.drop_world()
        if self._plan is None:
            raise InterruptedTransferError("there is no plan")
        create = functools.partial(
            World,
            place,
            is_sender=is_sender,
            provider=self.provider,
            device=self.memory.device,
            timeout=self.timeout,
        )
        self._world = world = _create_beside(create, links)
        with self._watcher.watch(links, world.interrupt):
            self.ring = Ring(world, self.memory, self._plan.bucket_bytes)

    @contextlib.contextmanager
    def transfer(self, links: Sequence[Link]) -> Iterator[Ring]:
        """Use the buckets until one of the links shows that the transfer cannot complete.

        Raises:
            InterruptedTransferError: there are no communicators.
        """
        if self.ring is None:
            raise InterruptedTransferError("there is no communicator")
        with self._watcher.watch(links, self.ring.world.interrupt):
            yield self.ring

    def drop_world(self) -> None:
        """Abort all operations; the next attempt creates new communicators and buckets."""
        if self._world is not None:
            self._world.abort()
        self._world = None
        self.ring = None

    def release(self) -> None:
        """End the thread and abort the communicators."""
        self._watcher.close()
        self.drop_world()

    def close(self) -> None:
        self._watcher.close()
        if self.ring is not None:
            self.ring.close()
        if self._world is not None:
            self._world.close()
        self.ring = None  # its windows belonged to the communicators
        self._world = None


def _create_beside(create: Callable[[], World], links: Sequence[Link]) -> World:
    """Create communicators on a thread, and give up when a link shows that a member has left."""
    created: Future[World] = Future()

    def run() -> None:
        try:
            world = create()
        except BaseException as error:
            if created.set_running_or_notify_cancel():
                created.set_exception(error)
            return
        if created.set_running_or_notify_cancel():
            created.set_result(world)
        else:
            world.abort()

    threading.Thread(target=run, name="pynccl-weights-init", daemon=True).start()
    try:
        while not wait([created], _LOOK).done:
            if any(map(is_ending, links)):
                raise InterruptedTransferError("a member left while the others connected")
        return created.result()
    except BaseException:  # including Ctrl-C
        if not created.cancel() and created.exception() is None:
            created.result().abort()
        raise


def finalize(owner: object, what: str, release: Callable[[], bool]) -> weakref.finalize[..., Any]:
    """Free an object's resources, with a ResourceWarning, if it is collected before close().

    The object must not be reachable from release(), which returns whether there was anything to
    free.
    """
    finalizer = weakref.finalize(owner, _released, what, release)
    finalizer.atexit = False  # a daemon thread may be in a call at exit
    return finalizer


def _released(what: str, release: Callable[[], bool]) -> None:
    if release():
        warnings.warn(f"unclosed {what}", ResourceWarning, stacklevel=2)


def checked_seconds(timeout: object) -> float:
    """Check a time limit.

    Raises:
        TypeError, ValueError: it is not a positive number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout: expected seconds, got {timeout!r}")
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"timeout: {timeout} is not above 0 and at most {threading.TIMEOUT_MAX:g} seconds"
        )
    return float(timeout)
