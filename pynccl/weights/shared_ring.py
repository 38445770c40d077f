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
from pynccl.weights.transfer import Progress, Ring, Sums, bind, fill, unpack
from pynccl.weights.world import World

__all__ = ["SharedRing"]

_SLOTS = 2


class SharedRing(Ring):
    """The two buckets of each sender. Those of receivers are never touched and occupy no memory.

    All members of the communicators must create their ring together.
    """

    def __init__(self, world: World, memory: Memory, nbytes: int) -> None:
        super().__init__(world, memory)
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
        self.nbytes = sum(buffer.nbytes for buffer in self._buffers.values())

    def send(self, steps: Sequence[Step], source: Source, progress: Progress) -> Sums:
        memory, sums = self.memory, Sums()
        ((sender, comm),) = self.world.comms.items()
        slots, ranks = self._slots[sender], [_ranks(step) for step in steps]

        def wait_for(number: int) -> None:
            comm.wait_signal(ranks[number])
            progress(steps[number].payload())

        source.begin()
        for number, step in enumerate(steps):
            if number >= _SLOTS:
                wait_for(number - _SLOTS)
            fill(memory, slots[number % _SLOTS], step, source, sums)
            for rank in ranks[number]:
                comm.signal(rank)
        source.end()
        for number in range(max(len(steps) - _SLOTS, 0), len(steps)):
            wait_for(number)
        return sums

    def receive(self, steps: Sequence[Step], target: Target, progress: Progress) -> Sums:
        memory, receiver, sums = self.memory, self.world.receiver, Sums()
        turns = dict.fromkeys(self._slots, 0)
        for step in steps:
            slot = self._slots[step.sender][turns[step.sender] % _SLOTS]
            turns[step.sender] += 1
            if not step.segments_for(receiver):
                continue
            bound = bind(step, receiver, target, memory)
            comm = self.world.comms[step.sender]
            comm.wait_signal(0)
            unpack(memory, slot, bound, sums)
            comm.signal(0)
            progress(step.payload(receiver))
        return sums


def _ranks(step: Step) -> list[int]:
    """The ranks that get a part of a step."""
    receivers = {receiver for segment in step.segments for receiver in segment.receivers}
    return [receiver + 1 for receiver in sorted(receivers)]
