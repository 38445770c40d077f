"""A member that follows the leader: every receiver, and every sender except the first."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from pynccl.errors import DriverError, NcclError, NcclRemoteError, NcclTimeoutError
from pynccl.weights import messages
from pynccl.weights.errors import (
    ChecksumError,
    PeerLostError,
    SessionClosedError,
    WeightsError,
)
from pynccl.weights.member import InterruptedTransferError, Member
from pynccl.weights.report import Report
from pynccl.weights.wire import Deadline, Link, LinkLostError, post_all

__all__ = ["End", "Follower"]

# The messages that end a version.
End = messages.Commit | messages.Refused | messages.Fail | messages.Bye
_ATTEMPTS = 3  # attempts with an NCCL error on this member before the error counts as its own


class Follower(ABC):
    """Follows the leader's messages. Senders and receivers derive from it."""

    is_sender: bool
    _link: Link  # to the leader

    def __init__(self, member: Member) -> None:
        self._member = member
        self._began = 0.0
        self._nbytes = 0
        self._epoch = -1
        self._failures = 0  # of attempts at this version, due to NCCL errors on this member
        self._closed = False

    @abstractmethod
    def _begin(self, message: messages.Begin) -> None:
        """Begin an attempt; the plan is known."""

    @abstractmethod
    def _transfer(self) -> None:
        """Transfer the steps of the plan, and answer if the leader expects it."""

    @abstractmethod
    def _count(self) -> int:
        """The bytes that this member transfers."""

    @abstractmethod
    def _handle(self, message: messages.Message) -> None:
        """Handle a message for members of this kind only."""

    @abstractmethod
    def _abandon(self, error: BaseException) -> None:
        """Handle a local error or an interrupt of this member in an attempt that has begun."""

    def wait(self, deadline: Deadline) -> Report:
        """Take part in the next version, which must begin before the deadline.

        Raises:
            TimeoutError: it did not begin in time.
            PeerLostError: the leader is lost, has lost a sender, or does not answer a sender.
            ChecksumError, WeightsError: the version was refused.
            SessionClosedError: the leader has closed the session.
        """
        if self._closed:
            raise SessionClosedError("the session is closed")
        try:
            end = self._take_part(deadline)
        except LinkLostError as error:
            raise self._lost(error) from error
        except BaseException as error:
            if self._began:
                self._give_up(error, own=True)
                self._abandon(error)
            raise
        else:
            if end is None:
                if not self._began and not self.is_sender:
                    raise TimeoutError(f"no version began within {deadline.seconds:g} s")
                raise self._silent()
            return self._ended(end)
        finally:
            self._began = 0.0
            self._failures = 0

    def abort(self) -> None:
        """End the wait of another thread, which then raises a PeerLostError."""
        self._link.shut_down()

    def release(self) -> bool:
        """Free descriptors, memory and the thread without sending a message to the leader.

        Returns:
            Whether the session was open.
        """
        was_open, self._closed = not self._closed, True
        self._link.close()
        self._member.release()
        return was_open

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            post_all([self._link], messages.Bye())
            self._link.close()
            self._member.release()

    def _next(self, deadline: Deadline) -> messages.Message | None:
        """The next message; None when the deadline is over, even if messages have arrived."""
        if deadline.is_over():
            return None
        try:
            return self._link.receive(deadline)
        except TimeoutError:
            return None

    def _take_part(self, deadline: Deadline) -> End | None:
        """Follow the leader until the version ends; return the message that ends it, or None."""
        while (message := self._next(deadline)) is not None:
            if isinstance(message, messages.Begin):
                self._epoch, self._began = message.epoch, time.monotonic()
            elif isinstance(message, messages.Commit) and not self._began:
                self._link.lose("a commit of a version that did not begin")
                continue
            self._obey(message)
            if isinstance(message, End):
                return message
            # The leader may wait twice: for the transfer, and for members that do not answer.
            is_stop = isinstance(message, messages.Stop)
            if isinstance(message, messages.OfAttempt) and not is_stop:
                deadline = Deadline(3 * self._member.timeout)
        return None

    def _obey(self, message: messages.Message) -> None:
        match message:
            case messages.Begin():
                self._try(message)
            case messages.Stop():
                self._member.drop_world()
                self._link.send(messages.Stopped(message.epoch))
            case _:
                self._handle(message)

    def _ended(self, end: End) -> Report:
        """Convert the end of a version to a report or an error."""
        match end:
            case messages.Commit():
                return self._report(end)
            case messages.Refused() if end.names:
                raise ChecksumError(end.reason, tuple(end.names))
            case messages.Refused():
                raise WeightsError(end.reason)
            case messages.Fail():
                self.close()
                raise PeerLostError(end.reason, tuple(end.names))
            case messages.Bye():
                self.close()
                raise SessionClosedError("the sender has closed the session")

    def _lost(self, error: LinkLostError) -> PeerLostError:
        self.close()
        return PeerLostError(f"the sender is lost: {error}", (self._link.name,))

    def _silent(self) -> PeerLostError:
        self.close()
        return PeerLostError(
            f"{self._link.name} has not answered for {3 * self._member.timeout:g} s",
            (self._link.name,),
        )

    def _try(self, message: messages.Begin) -> None:
        """Run an attempt; the leader tries again if NCCL fails."""
        try:
            self._attempt(message)
        except (NcclError, DriverError, InterruptedTransferError) as error:
            # It may be due to the death of another member. A lack of resources here will fail
            # again.
            is_own = isinstance(error, NcclError)
            is_own &= not isinstance(error, (NcclRemoteError, NcclTimeoutError))
            self._failures += is_own
            if self._failures == _ATTEMPTS and not self.is_sender:
                raise
            self._give_up(error)

    def _attempt(self, message: messages.Begin) -> None:
        if message.plan is not None:
            self._member.set_plan(message.plan)
        self._begin(message)
        if (place := message.world) is not None:
            if place.number >= (len(place.ids) if self.is_sender else place.receivers):
                self._link.lose("a place that is not in the communicators")
                return
            self._member.form(place, [self._link], is_sender=self.is_sender)
        if self._member.ring is None:
            return  # this member has given up the attempt, as the leader will read
        self._nbytes = self._count()
        self._transfer()

    def _give_up(self, error: BaseException, *, own: bool = False) -> None:
        self._member.drop_world()
        # Do not wait: the cause may be Ctrl-C.
        reason = f"{type(error).__name__}: {error}"
        post_all([self._link], messages.Failed(self._epoch, reason, own))

    def _report(self, message: messages.Commit) -> Report:
        return Report(
            message.version,
            self._nbytes,
            time.monotonic() - self._began,
            tuple(message.receivers),
            tuple(message.lost),
        )
