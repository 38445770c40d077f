"""A member that follows the leader: every receiver, and every sender except the first."""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from pynccl.errors import DriverError, NcclError, NcclRemoteError, NcclTimeoutError
from pynccl.weights.errors import (
    ChecksumError,
    PeerLostError,
    SessionClosedError,
    WeightsError,
)
from pynccl.weights.member import InterruptedTransferError, Member
from pynccl.weights.messages import (
    Begin,
    Bye,
    Check,
    Checked,
    Commit,
    Committed,
    Compare,
    Compared,
    Fail,
    Failed,
    Message,
    Offer,
    Refused,
    Repair,
    Sent,
    Stop,
    Stopped,
)
from pynccl.weights.plan import Segment, Step
from pynccl.weights.report import Report
from pynccl.weights.transfer import Sums, digest_of
from pynccl.weights.wire import Deadline, Link, LinkLostError, post_all

__all__ = ["Follower", "Role"]

_End = Commit | Refused | Fail | Bye  # the messages that end a version
_ATTEMPTS = 3  # with an NCCL error on this member, after which the error counts as its own


class Role(Protocol):
    """The behaviour that differs between senders and receivers."""

    def begin(self, provider: str) -> None:
        """Begin an attempt over a provider; the plan is known."""

    def run(self, steps: list[Step]) -> Sums:
        """Transfer steps; return the checksums of their units."""

    def compare(self, steps: list[Step]) -> Sums:
        """The current checksums of this sender's units."""

    def nbytes(self, steps: list[Step]) -> int:
        """The bytes of steps that this member transfers."""

    def commit(self, version: int) -> None:
        """Commit a version that all receivers have received."""


class Follower:
    """Follows the leader's messages.

    Args:
        member: the state.
        link: to the leader.
        role: sender or receiver.
        is_sender: whether it is a sender.

    Attributes:
        has_left: whether this receiver has left the session because of a local error. The link is
            closed, and the member can join again.
    """

    def __init__(self, member: Member, link: Link, role: Role, *, is_sender: bool) -> None:
        self._member = member
        self._link = link
        self._role = role
        self._is_sender = is_sender
        self._sums: Sums = {}
        self._segments: list[Segment] = []
        self._began = 0.0
        self._nbytes = 0
        self._epoch = -1
        self._failures = 0  # of attempts at this version, due to NCCL errors on this member
        self._is_settled = True  # whether the end of the version of the last offer was read
        self._closed = False
        self.has_left = False

    def wait(self, deadline: Deadline) -> Report:
        """Take part in the next version until it is committed.

        Args:
            deadline: until which it must begin.

        Raises:
            TimeoutError: it has not begun in time.
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
            self._abandon(error)
            raise
        else:
            if end is None:
                if not self._began and not self._is_sender:
                    raise TimeoutError(f"no version has begun within {deadline.seconds:g} s")
                raise self._silent()
            return self._ended(end)
        finally:
            self._began = 0.0
            self._failures = 0

    def offer(self, offer: Offer) -> None:
        """Send the leader this sender's offer for the next version."""
        if self._closed:
            raise SessionClosedError("the session is closed")
        try:
            self._settle()
            self._is_settled = False
            self._link.send(offer)
        except LinkLostError as error:
            raise self._lost(error) from error

    def abort(self) -> None:
        """End the wait of another thread, which then raises a PeerLostError."""
        self._link.shut_down()

    def release(self) -> bool:
        """Free descriptors, memory and the thread without sending a message to the leader.

        Returns:
            Whether the session was open, or could be joined again.
        """
        was_open = not self._closed or self.has_left
        self._closed, self.has_left = True, False
        self._link.close()
        self._member.release()
        return was_open

    def close(self) -> None:
        if self.has_left:
            self.has_left = False
            self._member.close()
        if not self._closed:
            self._closed = True
            post_all([self._link], Bye())
            self._link.close()
            self._member.drop_world()
            self._member.close()

    def _next(self, deadline: Deadline) -> Message | None:
        """The next message; None when the deadline is over, even if messages have arrived."""
        if deadline.is_over():
            return None
        try:
            return self._link.receive(deadline)
        except TimeoutError:
            return None

    def _take_part(self, deadline: Deadline) -> _End | None:
        """Follow the leader until the version ends; return the message that ends it, or None."""
        while (message := self._next(deadline)) is not None:
            if isinstance(message, Begin | Compare):
                self._epoch, self._began = message.epoch, time.monotonic()
            elif isinstance(message, Commit) and not self._began:
                self._link.lose("a commit of a version that has not begun")
                continue
            self._is_settled |= isinstance(message, _End)
            self._obey(message)
            if isinstance(message, _End):
                return message
            # The leader may wait twice: for the transfer, and for members that do not answer.
            if isinstance(message, Begin | Compare | Repair | Check):
                deadline = Deadline(3 * self._member.timeout)
        return None

    def _obey(self, message: Message) -> None:
        match message:
            case Begin() | Compare():
                self._work(message)
            case Repair() if message.epoch == self._epoch:
                self._work(message)
            case Check() if message.epoch == self._epoch:
                self._check(message)
            case Stop():
                self._member.drop_world()
                self._link.send(Stopped(message.epoch))
            case Commit():
                self._role.commit(message.version)
                if not self._is_sender:
                    with contextlib.suppress(LinkLostError):  # it is committed nevertheless
                        self._link.send(Committed(self._epoch))

    def _ended(self, end: _End) -> Report:
        """Convert the end of a version to a report or an error."""
        match end:
            case Commit():
                return self._report(end)
            case Refused() if end.names:
                raise ChecksumError(end.reason, tuple(end.names))
            case Refused():
                raise WeightsError(end.reason)
            case Fail():
                self.close()
                raise PeerLostError(end.reason, tuple(end.names))
            case Bye():
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

    def _work(self, message: Begin | Compare | Repair) -> None:
        """Carry out a message; the leader tries again if NCCL fails."""
        try:
            if isinstance(message, Begin):
                self._attempt(message)
            elif isinstance(message, Repair):
                self._transfer(message.units)
            else:
                sums = self._role.compare(self._member.steps)
                self._link.send(Compared(self._epoch, sums))
        except (NcclError, DriverError, InterruptedTransferError) as error:
            # It may be due to the death of another member. A lack of resources here will fail
            # again.
            is_own = isinstance(error, NcclError)
            is_own &= not isinstance(error, (NcclRemoteError, NcclTimeoutError))
            self._failures += is_own
            if self._failures == _ATTEMPTS and not self._is_sender:
                raise
            self._give_up(error)

    def _attempt(self, message: Begin) -> None:
        member = self._member
        if message.plan is not None:
            member.set_plan(message.plan)
        self._role.begin(message.provider)
        self._nbytes = 0
        if (world := message.world) is not None:
            if world.number >= (len(world.ids) if self._is_sender else world.receivers):
                self._link.lose("a place that is not in the communicators")
                return
            member.drop_world()
            member.form(
                world.ids,
                [self._link],
                sender=world.number if self._is_sender else None,
                receiver=None if self._is_sender else world.number,
                nreceivers=world.receivers,
                transport=world.transport,
                measures=world.measures,
            )
        self._transfer(message.units)

    def _transfer(self, numbers: list[int] | None) -> None:
        member = self._member
        if member.world is None:
            return
        steps = member.steps_of(numbers)
        self._nbytes = self._nbytes or self._role.nbytes(steps)
        with member.watcher.watch([self._link], member.world.interrupt):
            sums = self._role.run(steps)
        if self._is_sender:
            self._link.send(Sent(self._epoch, sums))
        else:
            self._sums = sums
            self._segments = [segment for step in steps for segment in step.segments]

    def _abandon(self, error: BaseException) -> None:
        """Handle a local error or an interrupt of this member.

        A receiver leaves, and the others continue. Without a sender the version ends for all.
        """
        if not self._began:
            return
        self._give_up(error, own=True)
        if self._is_sender:
            post_all([self._link], Stopped(self._epoch))
        else:
            self.has_left = self._closed = True
            self._link.close()

    def _settle(self) -> None:
        """Read the end of a version that this sender has abandoned."""
        deadline = Deadline(3 * self._member.timeout)
        while not self._is_settled:
            message = self._next(deadline)
            match message:
                case None:
                    raise self._silent()
                case Begin() | Compare():
                    self._epoch = message.epoch
                    self._give_up(InterruptedTransferError("send() was interrupted"), own=True)
                case Stop():
                    self._link.send(Stopped(message.epoch))
                case Commit() | Refused():
                    self._is_settled = True
                case Fail() | Bye():
                    self._ended(message)  # raises

    def _give_up(self, error: BaseException, *, own: bool = False) -> None:
        self._member.drop_world()
        # Do not wait: the cause may be Ctrl-C.
        reason = f"{type(error).__name__}: {error}"
        post_all([self._link], Failed(self._epoch, reason, own))

    def _check(self, message: Check) -> None:
        """Answer with the checksums of the segments whose digests differ."""
        world = self._member.world
        if world is None:
            return  # this attempt was given up, which the leader has yet to read
        if len(message.digests) != len(self._segments):
            self._link.lose("digests of other segments than were sent")
            return
        different: Sums = {}
        for segment, digest in zip(self._segments, message.digests, strict=True):
            if world.receiver not in segment.receivers:
                continue
            if digest_of(segment, self._sums) != digest:
                different.update((n, self._sums[n]) for n in segment.numbers)
        self._link.send(Checked(self._epoch, different))

    def _report(self, message: Commit) -> Report:
        return Report(
            message.version,
            self._nbytes,
            time.monotonic() - self._began,
            tuple(message.receivers),
            tuple(message.lost),
            tuple(message.repaired),
            message.link,
        )
