"""The communicators of a session."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from pynccl import nccl

__all__ = ["World"]

_PROBES = 4  # broadcasts, of which the first one connects


class World:
    """The communicators of the members of one attempt: one per sender, of it and all receivers.

    A sender is rank 0 of its communicator, receiver N is rank N + 1.

    Args:
        ids: of the communicators, by sender.
        sender: the number of this sender; None on receivers.
        receiver: the number of this receiver; None on senders.
        nreceivers: how many there are.
        provider: "host" or "cuda".
        device: the GPU, or None.
        timeout: the limit of every wait, in seconds.

    Attributes:
        comms: the communicators of this member, by sender.
        receiver: its number; None on senders.
        nreceivers: how many there are.
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
        """The bandwidth of a broadcast of a buffer by each sender in turn; all members call it.

        Args:
            buffer: the memory.
            stream: to enqueue on; None where the call ends with the broadcast, on CPUs.

        Returns:
            Bytes per second; of the communicators of this member the least.
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
        """End what waits on the communicators; any thread may call it."""
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
