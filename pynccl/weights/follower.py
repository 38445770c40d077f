"""A member that follows the leader: every receiver, and every sender but the first."""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from pynccl.errors import NcclError
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


class Role(Protocol):
    """What distinguishes senders and receivers."""

    def begin(self, provider: str) -> None:
        """An attempt over a provider begins, and the plan is known."""

    def run(self, steps: list[Step]) -> Sums:
        """Transfer steps; the checksums of their units."""

    def compare(self, steps: list[Step]) -> Sums:
        """The checksums of the units that this sender has now."""

    def nbytes(self, steps: list[Step]) -> int:
        """The bytes of steps that this member transfers."""

    def commit(self) -> None:
        """All receivers have the version."""


class Follower:
    """Obeys the leader's messages.

    Args:
        member: the state.
        link: to the leader.
        role: sender or receiver.
        is_sender: which of them.
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
        self._closed = False

    def wait(self, timeout: float | None) -> Report:
        """Take part in the next version until it is committed.

        Args:
            timeout: seconds until it begins; None is no limit.

        Raises:
            TimeoutError: it has not begun in time.
            PeerLostError: the leader is gone, has lost a sender, or does not answer a sender.
            ChecksumError, WeightsError: the version was refused.
            SessionClosedError: the leader has closed the session.
        """
        if self._closed:
            raise SessionClosedError("the session is closed")
        deadline = Deadline(timeout)
        try:
            while True:
                if deadline.is_over():  # whatever arrives
                    raise TimeoutError
                message = self._link.receive(deadline)
                if report := self._obey(message):
                    return report
                # The leader may wait twice: for the transfer, and for members that do not answer.
                if isinstance(message, Begin | Compare | Repair | Check):
                    deadline = Deadline(3 * self._member.timeout)
        except LinkLostError as error:
            self.close()
            raise PeerLostError(f"the sender is lost: {error}", (self._link.name,)) from error
        except TimeoutError:
            if not self._began and not self._is_sender:
                raise TimeoutError(f"no version has begun within {timeout:g} s") from None
            self.close()
            raise PeerLostError(
                f"{self._link.name} has not answered for {3 * self._member.timeout:g} s",
                (self._link.name,),
            ) from None
        finally:
            self._began = 0.0

    def offer(self, offer: Offer) -> None:
        """Tell the leader what this sender has for the next version."""
        try:
            self._link.send(offer)
        except LinkLostError as error:
            self.close()
            raise PeerLostError(f"the sender is lost: {error}", (self._link.name,)) from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            post_all([self._link], Bye())
            self._link.close()
            self._member.drop_world()
            self._member.close()

    def _obey(self, message: Message) -> Report | None:
        match message:
            case Begin() | Compare():
                self._epoch, self._began = message.epoch, time.monotonic()
                self._work(message)
            case Repair() if message.epoch == self._epoch:
                self._work(message)
            case Check() if message.epoch == self._epoch:
                self._check(message)
            case Stop():
                self._member.drop_world()
                self._link.send(Stopped(message.epoch))
            case Commit():
                return self._commit(message)
            case Refused():
                if message.names:
                    raise ChecksumError(message.reason, tuple(message.names))
                raise WeightsError(message.reason)
            case Fail():
                self.close()
                raise PeerLostError(message.reason, tuple(message.names))
            case Bye():
                self.close()
                raise SessionClosedError("the sender has closed the session")
        return None

    def _work(self, message: Begin | Compare | Repair) -> None:
        """Do what a message asks for, and tell the leader where that fails."""
        try:
            if isinstance(message, Begin):
                self._attempt(message)
            elif isinstance(message, Repair):
                self._transfer(message.units)
            else:
                sums = self._role.compare(self._member.steps)
                self._link.send(Compared(self._epoch, sums))
        except (NcclError, InterruptedTransferError) as error:
            self._give_up(error)
        except LinkLostError:
            raise
        except Exception as error:
            # Its own error: the leader ends the version for all.
            self._give_up(error, own=True)
            self._settle()
            raise
        except BaseException as error:  # Ctrl-C: it may come back, and is left out otherwise
            self._give_up(error)
            raise

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

    def _settle(self) -> None:
        """Wait until the leader has ended the version."""
        deadline = Deadline(2 * self._member.timeout)
        with contextlib.suppress(LinkLostError, TimeoutError):
            while not deadline.is_over():
                message = self._link.receive(deadline)
                if isinstance(message, Refused | Fail | Bye):
                    return
                if isinstance(message, Stop):
                    self._link.send(Stopped(message.epoch))

    def _give_up(self, error: BaseException, *, own: bool = False) -> None:
        self._member.drop_world()
        # Without waiting: Ctrl-C may be the reason.
        reason = f"{type(error).__name__}: {error}"
        post_all([self._link], Failed(self._epoch, reason, own))

    def _check(self, message: Check) -> None:
        """Answer with the checksums of the segments whose digest differs."""
        different: Sums = {}
        world = self._member.world
        if len(message.digests) != len(self._segments):
            self._link.lose("digests of other segments than were sent")
            return
        for segment, digest in zip(self._segments, message.digests, strict=True):
            if world is None or world.receiver not in segment.receivers:
                continue
            if digest_of(segment, self._sums) != digest:
                different.update((n, self._sums[n]) for n in segment.numbers)
        self._link.send(Checked(self._epoch, different))

    def _commit(self, message: Commit) -> Report:
        self._role.commit()
        return Report(
            message.version,
            self._nbytes,
            time.monotonic() - self._began,
            tuple(message.receivers),
            tuple(message.lost),
            tuple(message.repaired),
            message.link,
        )
