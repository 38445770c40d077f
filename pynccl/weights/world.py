"""The communicators of a session."""

from __future__ import annotations

import contextlib

from pynccl import nccl
from pynccl.weights.messages import WorldPlace

__all__ = ["World"]


class World:
    """The communicators of one attempt: one per sender, with that sender and all receivers.

    A sender is rank 0 of its communicator; receiver N is rank N + 1.

    Attributes:
        comms: the communicators of this member, by sender.
        receiver: number of this receiver; None on senders.
        nreceivers: the number of receivers.
    """

    def __init__(
        self, place: WorldPlace, *, is_sender: bool, provider: str, device: object, timeout: float
    ) -> None:
        self.receiver = None if is_sender else place.number
        self.nreceivers = place.receivers
        self.comms: dict[int, nccl.Communicator] = {}
        config = nccl.Config(timeout=timeout, init_timeout=timeout)
        try:
            for number in (place.number,) if is_sender else range(len(place.ids)):
                self.comms[number] = nccl.Communicator(
                    place.receivers + 1,
                    place.ids[number],
                    0 if is_sender else place.number + 1,
                    config=config,
                    provider=provider,
                    device=device,
                )
        except BaseException:
            self.abort()
            raise

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
