"""Transfer on CPUs: receivers copy from the senders' buckets, which all ranks can read.

A sender fills one bucket while the receivers empty the other. Signals of the communicators tell
which bucket is full, and which one has been read. A wait thus ends when NCCL's would: at the
deadline, at an interrupt, or when a rank dies. Checksums are computed while bytes are copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from pynccl.weights.memory import Memory, Tensor
from pynccl.weights.plan import Step
from pynccl.weights.source import Source
from pynccl.weights.target import Target
from pynccl.weights.transfer import Bindings, Progress, Sums, nbytes_for, pack, pack_made, unpack
from pynccl.weights.world import World

__all__ = ["SharedRing"]

_SLOTS = 2


class SharedRing:
    """The two buckets of each sender. Those of receivers are never touched, so take no memory.

    Args:
        world: the communicators, all members of which must create their ring together.
        memory: the session's memory, on the host.
        nbytes: size of a bucket.
    """

    def __init__(self, world: World, memory: Memory, nbytes: int) -> None:
        self.world = world
        self.memory = memory
        self._buffers = {
            sender: comm.symmetric_empty(_SLOTS * nbytes, "uint8")
            for sender, comm in world.comms.items()
        }
        self._slots: dict[int, list[Tensor]] = {}
        for sender, buffer in self._buffers.items():
            both = memory.bucket(buffer if world.receiver is None else buffer.peer(0))
            self._slots[sender] = [
                both[number * nbytes : (number + 1) * nbytes] for number in range(_SLOTS)
            ]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @property
    def spare(self) -> Tensor:
        return next(iter(self._slots.values()))[0]

    def probe(self) -> float:
        return self.world.probe(next(iter(self._buffers.values())), None)

    def send(
        self, steps: Sequence[Step], source: Source, bindings: Bindings, progress: Progress
    ) -> Sums:
        memory, sums = self.memory, Sums()
        ((sender, comm),) = self.world.comms.items()
        slots, ranks = self._slots[sender], [_ranks(step) for step in steps]

        def wait_for(number: int) -> None:
            comm.wait_signal(ranks[number])
            progress(steps[number].payload)

        source.begin()
        for number, step in enumerate(steps):
            if number >= _SLOTS:
                wait_for(number - _SLOTS)
            slot = slots[number % _SLOTS]
            if source.is_lazy:
                pack_made(memory, slot, step, source, sums)
            else:
                bound = bindings.bind(step, None, source, source, memory)
                pack(memory, slot, bound, sums)
            for rank in ranks[number]:
                comm.signal(rank)
        source.end()
        for number in range(max(len(steps) - _SLOTS, 0), len(steps)):
            wait_for(number)
        return sums

    def receive(
        self, steps: Sequence[Step], target: Target, bindings: Bindings, progress: Progress
    ) -> Sums:
        memory, receiver, sums = self.memory, self.world.receiver, Sums()
        turns = dict.fromkeys(self._slots, 0)
        for step in steps:
            slot = self._slots[step.sender][turns[step.sender] % _SLOTS]
            turns[step.sender] += 1
            if not step.is_for(receiver):
                continue
            bound = bindings.bind(step, receiver, target.staged, target, memory)
            comm = self.world.comms[step.sender]
            comm.wait_signal(0)
            unpack(memory, slot, bound, sums)
            comm.signal(0)
            progress(nbytes_for(step, receiver))
        return sums

    def close(self) -> None:
        """Do nothing: the communicators free the buckets."""


def _ranks(step: Step) -> list[int]:
    """The ranks that get a part of a step."""
    receivers: set[int] = set()
    for segment in step.segments:
        receivers.update(segment.receivers)
    return [receiver + 1 for receiver in sorted(receivers)]
