"""The communicators of a session."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from pynccl import nccl

__all__ = ["World"]

_PROBES = 4  # broadcasts; the first one connects


class World:
    """The communicators of one attempt: one per sender, with that sender and all receivers.

    A sender is rank 0 of its communicator; receiver N is rank N + 1.

    Args:
        ids: of the communicators, by sender.
        sender: number of this sender; None on receivers.
        receiver: number of this receiver; None on senders.
        nreceivers: the number of receivers.
        provider: "host" or "cuda".
        device: the GPU, or None.
        timeout: limit of every wait, in seconds.

    Attributes:
        comms: the communicators of this member, by sender.
        receiver: number of this receiver; None on senders.
        nreceivers: the number of receivers.
    """

    def __init__(
        self,
        ids: Sequence[bytes],
        *,
        sender: int | None,
        receiver: int | None,
        nreceivers: int,
        provider: str,
        device: object,
        timeout: float,
    ) -> None:
        self.receiver = receiver
        self.nreceivers = nreceivers
        self.comms: dict[int, nccl.Communicator] = {}
        config = nccl.Config(timeout=timeout, init_timeout=timeout)
        own = range(len(ids)) if sender is None else (sender,)
        rank = 0 if receiver is None else receiver + 1
        try:
            for number in own:
                self.comms[number] = nccl.Communicator(
                    nreceivers + 1,
                    ids[number],
                    rank,
                    config=config,
                    provider=provider,
                    device=device,
                )
        except BaseException:
            self.abort()
            raise

    def probe(self, buffer: nccl.Buffer, stream: nccl.Stream | None) -> float:
        """Measure the bandwidth of a broadcast by each sender in turn; all members call it.

        Args:
            buffer: the memory.
            stream: the stream to enqueue on; None on CPUs, where the call ends with the broadcast.

        Returns:
            Bytes per second; the lowest of this member's communicators.
        """
        slowest = float("inf")
        for comm in self.comms.values():
            seconds = []
            for _ in range(_PROBES):
                began = time.perf_counter()
                comm.broadcast(buffer, 0, stream=stream)
                if stream is not None:
                    stream.synchronize()
                seconds.append(time.perf_counter() - began)
            slowest = min(slowest, buffer.nbytes / min(seconds))
        return slowest

    def interrupt(self) -> None:
        """End all waits on the communicators; any thread may call it."""
        for comm in list(self.comms.values()):
            with contextlib.suppress(Exception):
                try:
                    comm.revoke()
                except nccl.MissingFunctionError:
                    comm.abort()

    def abort(self) -> None:
        for comm in self.comms.values():
            with contextlib.suppress(Exception):
                comm.abort()

    def close(self) -> None:
        for comm in self.comms.values():
            comm.close()
