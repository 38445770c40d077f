"""Sender 0, which accepts the other members, computes the plan and decides what is committed."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pynccl import nccl
from pynccl.errors import DriverError, NcclError
from pynccl.weights import messages
from pynccl.weights.entrance import Entrance
from pynccl.weights.errors import ChecksumError, PeerLostError, WeightsError
from pynccl.weights.layout import Layout
from pynccl.weights.member import InterruptedTransferError, Member
from pynccl.weights.report import Report
from pynccl.weights.source import Source
from pynccl.weights.transfer import Sums, digests
from pynccl.weights.watch import is_ending
from pynccl.weights.wire import Deadline, Link, post_all, send_all, wait

__all__ = ["Leader", "Options"]

# In bytes. Smaller buckets cause more waits between the members; larger ones need more memory.
_BUCKETS = {"host": 16 << 20, "cuda": 64 << 20}
_DIRECT = {"host": 256 << 10, "cuda": 4 << 20}

_GRACE = 5.0  # seconds for a member to report that it has stopped
_ATTEMPTS = 3  # failed attempts without losing a member

_Answer = TypeVar("_Answer", bound=messages.Message)


@dataclass(frozen=True)
class Options:
    """The settings of a session: see :class:`WeightSender`."""

    senders: int
    receivers: int
    bucket_bytes: int | None
    direct_bytes: int | None

    def sizes(self, provider: str) -> tuple[int, int]:
        """The sizes of a bucket and of direct tensors for a provider."""
        bucket = self.bucket_bytes or _BUCKETS[provider]
        return bucket, min(self.direct_bytes or _DIRECT[provider], bucket)


@dataclass
class _Sender:
    """A sender other than this one, with the numbers of versions that it offered and saw end."""

    link: Link
    version: int | None = None
    layout: Layout | None = None
    order: list[str] | None = None
    heard: int = 0
    ended: int = 0


@dataclass
class _Receiver:
    link: Link
    name: str
    wanted: Layout | None


class Leader:
    """The leader's side of the protocol."""

    def __init__(self, member: Member, entrance: Entrance, options: Options) -> None:
        self._member = member
        self._entrance = entrance
        self._options = options
        self._senders: dict[int, _Sender] = {}
        self._receivers: list[_Receiver] = []
        self._plan: messages.Plan | None = None
        self._planned: list[object] = []  # the layouts that the plan was computed from
        self._formed: list[Link] = []  # the members of the communicators
        self._informed: list[Link] = []  # the members that know the plan
        self._epoch = 0
        self._lost: list[str] = []
        self._stopping: list[Link] = []  # the members that have not yet reported Stopped
        self._failed: list[str] = []  # local errors of senders in an attempt that was stopped
        self._left: list[str] = []  # local errors of receivers, which have left
        self._is_decided = False  # receivers were told to commit, and not all are lost
        self.version = 0  # the last version for which _is_decided was set
        self._served: list[Link] = []  # the receivers with the last version
        self._began_once = False
        self._closed = False
        self._is_aborted = False

    def transfer(self, version: int, source: Source) -> Report:
        """Transfer a version to all receivers that have joined."""
        if self._closed:
            raise WeightsError("the session is closed")
        self._is_decided = False
        try:
            self._begin(version)
            return self._attempts(version, source)
        except PeerLostError as error:
            self._fail(error)
            raise
        except BaseException as error:
            if self._is_decided:
                raise  # Ctrl-C, after receivers were told to commit
            if self._is_aborted and isinstance(error, Exception):  # of a connection that it closed
                lost = PeerLostError("the session was aborted")
                self._fail(lost)
                raise lost from error
            # The user's tensors, a wrong layout, Ctrl-C: the receivers keep their version.
            try:
                if isinstance(error, Exception):
                    self._stop()
                else:  # Ctrl-C does not wait; the next version will
                    self._leave_attempt()
                    self._stopping = self._links()
                    post_all(self._stopping, messages.Stop(self._epoch))
            except PeerLostError as lost:
                self._fail(lost)
                raise
            names = error.names if isinstance(error, ChecksumError) else ()
            reason = f"version {version} was given up: {type(error).__name__}: {error}"
            self._end(messages.Refused(reason, list(names)))
            raise

    def abort(self) -> None:
        """End the waits of the thread in transfer(), which then raises a PeerLostError."""
        self._is_aborted = True
        self._entrance.close()
        for link in self._links():
            link.shut_down()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._end(messages.Bye())
            for link in self._links():
                link.close()
            self._entrance.close()
            self._member.close()

    def release(self) -> bool:
        """Free descriptors, memory and the thread without sending a message to the others.

        Returns:
            Whether the session was open.
        """
        was_open, self._closed = not self._closed, True
        for link in self._links():
            link.close()
        self._entrance.close()
        self._member.release()
        return was_open

    def _fail(self, error: PeerLostError) -> None:
        """End the session with an error for all members."""
        self._end(messages.Fail(str(error), list(error.names)))
        self.close()

    def waiting(self) -> int:
        """The number of receivers without the last version; they join at the next."""
        if not self._closed:
            self._greet(self._entrance.arrived(Deadline(0)))
        links = self._receiver_links()
        return sum(link not in self._served and not is_ending(link) for link in links)

    # Members

    def _sender_links(self) -> list[Link]:
        return [self._senders[number].link for number in sorted(self._senders)]

    def _receiver_links(self) -> list[Link]:
        return [receiver.link for receiver in self._receivers]

    def _links(self) -> list[Link]:
        return [*self._sender_links(), *self._receiver_links()]

    def _admit(self) -> None:
        """Admit all members that have joined; at first, wait for them."""
        deadline = Deadline(self._member.timeout)
        while True:
            enough = len(self._senders) == self._options.senders - 1 and (
                self._began_once or len(self._receivers) >= self._options.receivers
            )
            arrived = self._entrance.arrived(Deadline(0) if enough else deadline)
            self._greet(arrived)
            if self._is_aborted:
                raise PeerLostError("the session was aborted")
            if enough:
                break
            if not arrived:
                raise PeerLostError(
                    f"{len(self._senders) + 1} of {self._options.senders} senders and "
                    f"{len(self._receivers)} of {self._options.receivers} receivers joined within "
                    f"{self._member.timeout:g} s"
                )
        for receiver in list(self._receivers):
            link = receiver.link
            if any(isinstance(message, messages.Bye) for message in link.unread()):
                self._receivers.remove(receiver)
                link.close()
            elif link.lost or self._own_errors(link):
                self._drop(link)

    def _greet(self, arrived: Sequence[tuple[Link, messages.Hello]]) -> None:
        for link, hello in arrived:
            if isinstance(hello, messages.SenderHello):
                link.name = f"sender {hello.number}"
                self._senders[hello.number] = _Sender(link)
                continue
            for receiver in list(self._receivers):  # it left after its last commit, and is back
                if receiver.name == hello.name and is_ending(receiver.link):
                    self._receivers.remove(receiver)
                    receiver.link.close()
            names = {receiver.name for receiver in self._receivers}
            name = hello.name if hello.name not in names else f"{hello.name} ({link.fileno()})"
            link.name = name
            self._receivers.append(_Receiver(link, name, hello.wanted))

    def _hear_offers(self) -> None:
        """Read the other senders' layouts, which come with each version."""
        deadline = Deadline(self._member.timeout)  # for all of them: the others wait
        for sender in self._senders.values():
            while sender.heard <= sender.ended:  # an offer may be for a version given up
                self._collect([sender.link], messages.Offer, deadline)
            if sender.layout is None:
                self._drop(sender.link, "it sent no offer")

    def _note_offer(self, link: Link, offer: messages.Offer) -> None:
        """Store a layout, even if its version is given up: it is not sent again."""
        (sender,) = (sender for sender in self._senders.values() if sender.link is link)
        sender.heard += 1
        sender.version = offer.version
        if offer.layout is not None:
            sender.layout, sender.order = offer.layout, offer.order

    def _check_numbers(self, version: int) -> None:
        """Raise ValueError if the senders do not all send the same version."""
        for number, sender in sorted(self._senders.items()):
            if sender.version != version:
                raise ValueError(
                    f"version: sender 0 sends {version} and sender {number} sends "
                    f"{sender.version}; call send() on all senders for each version, with the "
                    "same version= on all"
                )

    @staticmethod
    def _own_errors(link: Link) -> list[str]:
        """The reasons of a receiver that has left, if they have not been read yet."""
        return [
            f"{link.name}: {message.reason}"
            for message in link.unread()
            if isinstance(message, messages.Failed) and message.own
        ]

    def _drop(self, link: Link, reason: str = "") -> None:
        """Drop a member and continue; a sender is indispensable."""
        reason = link.lost or reason
        own = self._own_errors(link)
        link.close()
        for receiver in self._receivers:
            if receiver.link is link:
                self._receivers.remove(receiver)
                self._lost.append(receiver.name)
                self._left += own
                return
        raise PeerLostError(f"{link.name} is lost: {reason}", (link.name,))

    def _send_all(self, posts: Iterable[tuple[Link, messages.Message]]) -> None:
        for link in send_all(posts, Deadline(self._member.timeout)):
            self._drop(link)

    def _tell(self, links: Iterable[Link], message: messages.Message) -> None:
        self._send_all((link, message) for link in links)

    def _end(self, message: messages.Refused | messages.Fail | messages.Bye) -> None:
        """Send the end to all reachable members, without waiting."""
        post_all(self._links(), message)
        self._count_end()

    def _count_end(self) -> None:
        for sender in self._senders.values():
            sender.ended += 1

    def _collect(
        self, links: Sequence[Link], kind: type[_Answer], deadline: Deadline | None = None
    ) -> list[tuple[Link, _Answer]]:
        """The next message of a kind, in this attempt, from each of several members.

        Members that are lost, or do not answer before the deadline, are dropped. None is the
        session's timeout.

        Raises:
            InterruptedTransferError: a member failed.
            PeerLostError: a sender is lost.
        """
        deadline = deadline or Deadline(self._member.timeout)
        answers: list[tuple[Link, _Answer]] = []
        waiting = list(links)
        is_last = False  # messages are checked once more after the deadline
        while waiting:
            for link in list(waiting):
                if (answer := self._answer_of(link, kind)) is not None:
                    answers.append((link, answer))
                    waiting.remove(link)
                elif link.lost:
                    waiting.remove(link)
                    self._drop(link)
            if waiting and is_last:
                for link in waiting:
                    self._drop(link, "it does not answer")
                break
            is_last = deadline.is_over()
            if waiting and not is_last:
                wait(waiting, deadline)
        return answers

    def _answer_of(self, link: Link, kind: type[_Answer]) -> _Answer | None:
        """The message of a kind, if it has arrived; earlier messages are processed."""
        for _ in range(len(link.unread())):
            message = link.next()
            if isinstance(message, messages.Offer):
                self._note_offer(link, message)
            elif isinstance(message, messages.Bye):
                link.lose("it has left")
            elif not isinstance(message, messages.OfAttempt) or message.epoch != self._epoch:
                continue
            if isinstance(message, kind):
                return message
            if isinstance(message, messages.Failed):
                reason = f"{link.name}: {message.reason}"
                if link not in self._sender_links() and (message.own or kind is messages.Committed):
                    self._left.append(reason)
                    link.lose(message.reason)  # it has left
                elif kind is messages.Stopped:
                    self._failed += [reason] if message.own else []
                elif message.own:
                    raise WeightsError(reason)
                else:
                    raise InterruptedTransferError(reason)
        return None

    def _stop(self) -> None:
        """End an attempt on all members, and determine which members remain."""
        self._leave_attempt()
        self._stopping = self._links()
        self._tell(self._stopping, messages.Stop(self._epoch))
        self._await_stopped()

    def _await_stopped(self) -> None:
        links, self._stopping = [link for link in self._stopping if link in self._links()], []
        self._collect(links, messages.Stopped, Deadline(min(_GRACE, self._member.timeout)))

    def _leave_attempt(self) -> None:
        self._member.drop_world()
        self._formed = []
        self._informed = []  # an interrupted member may not have read the plan
        self._failed = []

    # One version

    def _begin(self, version: int) -> None:
        """Determine the members that take part in a version."""
        self._lost = []
        self._admit()
        self._await_stopped()  # of a version that Ctrl-C ended
        self._hear_offers()  # the other senders wait, even if this version cannot begin
        self._check_numbers(version)
        if not self._receivers:
            raise WeightsError("there are no receivers")
        self._left = []  # before this version
        self._began_once = True

    def _attempts(self, version: int, source: Source) -> Report:
        """Try until all remaining receivers have the version."""
        failures = 0
        failure: Exception | None = None  # of the previous attempt
        while True:
            lost = len(self._lost)
            try:
                return self._attempt(version, source)
            except PeerLostError:
                raise
            except (NcclError, DriverError, InterruptedTransferError, ChecksumError) as error:
                self._stop()
                if not self._receivers:
                    if self._left:  # they may return
                        raise WeightsError("; ".join(self._left)) from error
                    names = tuple(self._lost)
                    raise PeerLostError(
                        f"all receivers are lost: {', '.join(names)}", names
                    ) from error
                if self._failed:
                    raise _after(failure, "; ".join(self._failed)) from error
                failures += len(self._lost) == lost
                if failures == _ATTEMPTS:
                    if isinstance(error, ChecksumError):
                        raise
                    raise WeightsError(f"version {version} was given up: {error}") from error
                failure = error
            except WeightsError as error:  # a sender cannot take part, perhaps in another attempt
                if failure is None:
                    raise
                raise _after(failure, str(error)) from error

    def _attempt(self, version: int, source: Source) -> Report:
        member = self._member
        self._epoch += 1
        began = time.monotonic()
        self._make_plan(source)
        links = self._links()
        place = self._new_place() if links != self._formed else None
        begins = []
        numbers = [*range(1, len(self._senders) + 1), *range(len(self._receivers))]
        for number, link in zip(numbers, links, strict=True):
            plan = None if link in self._informed else self._plan
            world = None if place is None else replace(place, number=number)
            begins.append((link, messages.Begin(self._epoch, member.provider, plan, world)))
        self._send_all(begins)
        if links != self._links():
            raise InterruptedTransferError("a receiver has died")
        self._informed = links
        if place is not None:
            member.form(place, links, is_sender=True)
            self._formed = links
        self._verify(self._send(source))
        self._commit(version)
        self._served = self._links()
        return Report(
            version,
            sum(step.payload() for step in member.steps),
            time.monotonic() - began,
            tuple(receiver.name for receiver in self._receivers),
            tuple(self._lost),
        )

    def _make_plan(self, source: Source) -> None:
        """Compute the plan from the layouts, unless they are the same objects as before."""
        senders = [self._senders[number] for number in sorted(self._senders)]
        layouts: list[object] = [source.layout, source.is_lazy]
        for sender in senders:
            layouts += [sender.layout, sender.order]
        layouts += [receiver.wanted for receiver in self._receivers]
        if len(layouts) == len(self._planned) and all(map(operator.is_, layouts, self._planned)):
            return
        bucket, direct = self._options.sizes(self._member.provider)
        different: list[Layout | None] = []
        for receiver in self._receivers:
            if receiver.wanted not in different:
                different.append(receiver.wanted)
        plan = messages.Plan(
            [source.layout, *(sender.layout or {} for sender in senders)],
            different,
            [different.index(receiver.wanted) for receiver in self._receivers],
            bucket,
            direct,
            self._order(source),
        )
        if plan != self._plan:
            self._plan, self._planned, self._informed = None, [], []
            self._member.set_plan(plan)  # raises if the layouts do not match
            self._plan = plan
        self._planned = layouts

    def _order(self, source: Source) -> list[str] | None:
        """The order in which all senders produce their tensors; None if they all exist."""
        others = [sender.order for sender in self._senders.values()]
        orders = [order for order in (source.order, *others) if order is not None]
        if any(order != orders[0] for order in orders):
            raise ValueError(
                "metadata: the senders have different names or orders; each lists the tensors of "
                "all senders, in the order in which they are produced, and None for those of others"
            )
        return orders[0] if orders else None

    def _new_place(self) -> messages.WorldPlace:
        """The place of this sender in new communicators."""
        provider = self._member.provider
        ids = [bytes(nccl.get_unique_id(provider)) for _ in range(self._options.senders)]
        return messages.WorldPlace(ids, 0, len(self._receivers))

    def _send(self, source: Source) -> Sums:
        """Make all senders send their units; return the checksums."""
        own = [step for step in self._member.steps if step.sender == 0]
        with self._member.transfer(self._links()) as ring:
            sums = ring.send(own, source)
        self._add_sums(sums)
        return sums

    def _add_sums(self, sums: Sums) -> None:
        """Add the checksums of the other senders' units."""
        units: dict[int, set[int]] = {number: set() for number in self._senders}
        for step in self._member.steps:
            if step.sender:
                units[step.sender].update(unit.number for unit, _ in step.units)
        answers = dict(self._collect(self._sender_links(), messages.Sent))
        for number, sender in self._senders.items():
            answer = answers[sender.link]  # a sender without an answer is lost
            if answer.sums.keys() != units[number]:
                self._drop(sender.link, "it sent checksums of units other than its own")
            sums.update(answer.sums)

    def _verify(self, sums: Sums) -> None:
        """Let the receivers compare the checksums.

        Raises:
            ChecksumError: a receiver has other checksums.
            InterruptedTransferError: all receivers are lost.
        """
        message = messages.Check(self._epoch, digests(self._member.steps, sums))
        self._tell(self._receiver_links(), message)
        bad: set[int] = set()
        for link, answer in self._collect(self._receiver_links(), messages.Checked):
            if not answer.sums.keys() <= sums.keys():
                self._drop(link, "it sent checksums of units that were not sent")
            else:
                bad.update(n for n, value in answer.sums.items() if sums[n] != value)
        if not self._receivers:
            raise InterruptedTransferError("all receivers are lost")
        if bad:
            names = tuple(dict.fromkeys(self._member.units[number].name for number in sorted(bad)))
            raise ChecksumError(f"the checksums of {', '.join(names)} differ on a receiver", names)

    def _commit(self, version: int) -> None:
        """Let the receivers commit a version, and then inform the other senders."""
        told: list[Link] = []

        def posts(links: Sequence[Link]) -> Iterator[tuple[Link, messages.Message]]:
            commit = self._commit_of(version)
            for link in links:
                told.append(link)
                yield link, commit

        try:
            self._send_all(posts(self._receiver_links()))
            self._collect(self._receiver_links(), messages.Committed)
            if not self._receivers:
                raise InterruptedTransferError("all receivers are lost")
            self._send_all(posts(self._sender_links()))
        except BaseException:  # do not wait after Ctrl-C
            if self._receivers:
                links = [link for link in self._links() if link not in told]
                post_all(links, self._commit_of(version))
            raise
        finally:
            if self._receivers:
                self._is_decided, self.version = True, version
                self._count_end()

    def _commit_of(self, version: int) -> messages.Commit:
        names = [receiver.name for receiver in self._receivers]
        return messages.Commit(version, names, list(self._lost))


def _after(failure: Exception | None, text: str) -> WeightsError:
    """The error of a sender that cannot take part in another attempt.

    Args:
        failure: of the previous attempt, or None.
        text: the sender's error.
    """
    if failure is None:
        return WeightsError(text)
    text = f"{failure}; {text}"
    if isinstance(failure, ChecksumError):
        return ChecksumError(text, failure.names)
    return WeightsError(text)
