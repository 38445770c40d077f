"""The transfer: NCCL operations on a stream, from and to the buckets of a member.

Data that all receivers get is broadcast; data for only some of them is sent to each. While one
bucket is sent or received, the calling thread fills or empties the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pynccl import nccl
from pynccl.weights.memory import Memory, Tensor
from pynccl.weights.plan import Step
from pynccl.weights.source import Source
from pynccl.weights.target import Target
from pynccl.weights.transfer import Sums, bind, fill, unpack
from pynccl.weights.world import World

__all__ = ["Ring", "Slot"]

_SLOTS = 2


@dataclass
class Slot:
    """A bucket and the transfer in progress."""

    buffer: nccl.Buffer
    bucket: Tensor  # the memory of the buffer
    event: nccl.Event  # the end of the transfer
    is_busy: bool = False
    step: Step | None = None  # being received, until it is unpacked
    kept: list[Tensor] = field(default_factory=list)  # being sent, referenced until the event

    def wait(self) -> None:
        if self.is_busy:
            self.event.synchronize()
            self.is_busy = False
            self.kept.clear()


class Ring:
    """The two buckets and the stream of a member."""

    def __init__(self, world: World, memory: Memory, nbytes: int) -> None:
        self.world = world
        self.memory = memory
        comms = list(world.comms.values())
        provider = "host" if memory.on_host else "cuda"
        device = None if memory.on_host else comms[0].device
        self._stream = nccl.Stream(provider, device=device)
        self._slots = []
        self._registrations = []
        for _ in range(_SLOTS):
            buffer = comms[0].mem_alloc(nbytes)
            event = nccl.Event(provider, device=device)
            self._slots.append(Slot(buffer, memory.bucket(buffer), event))
            self._registrations += [comm.register(buffer) for comm in comms]

    def send(self, steps: Sequence[Step], source: Source) -> Sums:
        """Send the steps of this sender, and return the checksums of their units.

        Raises:
            NcclError: a communicator failed.
            ValueError, TypeError: the source does not match its layout.
        """
        memory, sums = self.memory, Sums()
        memory.synchronize()  # the caller's enqueued work produces the tensors
        source.begin()
        for number, step in enumerate(steps):
            slot = self._slots[number % _SLOTS]
            slot.wait()
            bound = None if source.is_lazy else bind(step, None, source, memory)
            if bound is not None and len(step.units) == len(bound.raws) == 1:
                slot.kept += bound.raws
                self._start(step, memory.address(bound.raws[0]), slot)
                sums[bound.numbers[0]] = memory.checksum(bound.raws[0])
            else:
                fill(memory, slot.bucket, step, source, sums)
                self._start(step, slot.buffer.ptr, slot)
        source.end()
        for slot in self._slots:
            slot.wait()
        return sums

    def receive(self, steps: Sequence[Step], target: Target) -> Sums:
        """Receive the units of all senders' steps for this receiver.

        Returns:
            The checksums of the units as they are in the target, or as they arrived if the target
            has another dtype.

        Raises:
            NcclError: a communicator failed.
        """
        memory, receiver, sums = self.memory, self.world.receiver, Sums()

        def finish(slot: Slot) -> None:
            slot.wait()
            if slot.step is None:
                return
            step, slot.step = slot.step, None
            bound = bind(step, receiver, target, memory)
            if len(step.units) == len(bound.raws) == 1:
                sums[bound.numbers[0]] = memory.checksum(bound.raws[0])
            else:
                unpack(memory, slot.bucket, bound, sums)

        own = [step for step in steps if step.segments_for(receiver)]
        for number, step in enumerate(own):
            slot = self._slots[number % _SLOTS]
            finish(slot)
            address = slot.buffer.ptr
            if len(step.units) == 1 and (raws := bind(step, receiver, target, memory).raws):
                address = memory.address(raws[0])
            slot.step = step
            self._start(step, address, slot)
        for number in range(len(own), len(own) + _SLOTS):
            finish(self._slots[number % _SLOTS])
        return sums

    def close(self) -> None:
        """End the registrations of the buckets, which the communicators refer to."""
        for registration in self._registrations:
            registration.close()

    def _start(self, step: Step, address: int, slot: Slot) -> None:
        """Enqueue the transfer of a step, from or to memory that begins at an address."""
        world, comm = self.world, self.world.comms[step.sender]
        segments = step.segments_for(world.receiver)
        with nccl.group() if len(segments) > 1 else contextlib.nullcontext():
            for receivers, offset, nbytes, *_ in segments:
                options: dict[str, Any] = {"count": nbytes, "dtype": "uint8"}
                options["stream"] = self._stream
                if len(receivers) == world.nreceivers:
                    comm.broadcast(address + offset, 0, **options)
                elif world.receiver is not None:
                    comm.recv(address + offset, 0, **options)
                else:
                    with nccl.group():
                        for receiver in receivers:
                            comm.send(address + offset, receiver + 1, **options)
        slot.event.record(self._stream)
        slot.is_busy = True
