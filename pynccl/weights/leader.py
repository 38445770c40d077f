"""Sender 0, which accepts the other members, makes the plan and decides what is committed."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pynccl import nccl
from pynccl.errors import NcclError
from pynccl.weights.errors import ChecksumError, PeerLostError, WeightsError
from pynccl.weights.layout import Layout, from_wire
from pynccl.weights.member import (
    InterruptedTransferError,
    Member,
    PlanMessage,
    encode_plan,
)
from pynccl.weights.options import Options
from pynccl.weights.progress import meter
from pynccl.weights.report import Report
from pynccl.weights.source import Source
from pynccl.weights.transfer import Sums, digests, sums_of
from pynccl.weights.watch import is_ending
from pynccl.weights.wire import Deadline, Link, LinkLostError, Listener, Message

__all__ = ["Leader"]

_GRACE = 5.0  # seconds for a member to say that it has stopped
_ATTEMPTS = 3  # that fail without a member being lost
_REPAIRS = 3  # times that tensors are sent again


@dataclass
class _Receiver:
    link: Link
    name: str
    wanted: Layout | None
    keeps_base: bool  # it writes a version over the last one


class _FollowerError(WeightsError):
    """A follower has had an error of its own."""


class Leader:
    """The leader's side of the protocol.

    Args:
        member: the state of this sender.
        listener: where the others connect.
        options: of the session.
    """

    def __init__(self, member: Member, listener: Listener, options: Options) -> None:
        self._member = member
        self._listener = listener
        self._options = options
        self._senders: dict[int, Link] = {}
        self._offers: dict[int, Layout] = {}
        self._orders: dict[int, list[str] | None] = {}
        self._receivers: list[_Receiver] = []
        self._plan: PlanMessage | None = None
        self._planned: list[object] = []  # the layouts that it is made of
        self._formed: list[Link] = []  # the members of the communicators
        self._informed: list[Link] = []  # those that know the plan
        self._known: Sums = {}  # of the version that all receivers have; empty where unknown
        self._epoch = 0
        self._lost: list[str] = []
        self._failed: list[str] = []  # errors of followers' own in an attempt that was stopped
        self._served: list[Link] = []  # those that have the last version
        self._began_once = False
        self._closed = False

    def transfer(self, version: int, source: Source, provider: str, *, delta: bool) -> Report:
        """Transfer a version to all receivers that are there.

        Args:
            version: its number.
            source: what this sender has.
            provider: "host" or "cuda".
            delta: whether units that have not changed are left out, where that is possible.
        """
        if self._closed:
            raise WeightsError("the session is closed")
        self._lost = []
        failures = 0
        try:
            self._admit()
            self._hear_offers()  # the other senders wait, also where this version cannot begin
            if not self._receivers:
                raise WeightsError("there are no receivers")
            self._began_once = True
            while True:
                lost = len(self._lost)
                try:
                    return self._attempt(version, source, provider, delta=delta)
                except (NcclError, InterruptedTransferError) as error:
                    self._stop()
                    if not self._receivers:
                        names = tuple(self._lost)
                        raise PeerLostError(
                            f"all receivers are lost: {', '.join(names)}", names
                        ) from error
                    if self._failed:
                        raise _FollowerError("; ".join(self._failed)) from error
                    failures += len(self._lost) == lost
                    if failures == _ATTEMPTS:
                        raise WeightsError(f"version {version} was given up: {error}") from error
        except PeerLostError as error:
            self._fail(error)
            raise
        except BaseException as error:
            # The user's tensors, a wrong layout, Ctrl-C: the receivers keep what they have.
            try:
                self._stop()
            except PeerLostError as lost:
                self._fail(lost)
                raise
            names = error.names if isinstance(error, ChecksumError) else ()
            reason = f"version {version} was given up: {type(error).__name__}: {error}"
            self._tell_all("refused", reason=reason, names=names)
            raise

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tell_all("bye")
            for link in self._links():
                link.close()
            self._listener.close()
            self._member.close()

    def _fail(self, error: PeerLostError) -> None:
        """End the session with an error on all."""
        self._tell_all("fail", reason=str(error), names=error.names)
        self.close()

    def waiting(self) -> int:
        """How many receivers do not have the last version; they join at the next."""
        while not self._closed and (link := self._listener.accept(0)):
            self._greet(link)
        links = [receiver.link for receiver in self._receivers]
        return sum(link not in self._served and not is_ending(link) for link in links)

    # Members

    def _links(self) -> list[Link]:
        senders = [self._senders[number] for number in sorted(self._senders)]
        return [*senders, *(receiver.link for receiver in self._receivers)]

    def _admit(self) -> None:
        """Let in all who have connected; at first, wait for the others."""
        deadline = Deadline(self._member.timeout)
        while True:
            enough = len(self._senders) == self._options.senders - 1 and (
                self._began_once or len(self._receivers) >= self._options.receivers
            )
            link = self._listener.accept(0 if enough else deadline.left())
            if link is not None:
                self._greet(link)
            elif enough:
                break
            elif deadline.is_over():
                raise PeerLostError(
                    f"{len(self._senders) + 1} of {self._options.senders} senders and "
                    f"{len(self._receivers)} of {self._options.receivers} receivers came within "
                    f"{self._member.timeout:g} s"
                )
        for receiver in list(self._receivers):
            kinds = receiver.link.peek()
            if kinds is None:
                self._drop(receiver.link)
            elif "bye" in kinds:
                self._receivers.remove(receiver)
                receiver.link.close()

    def _greet(self, link: Link) -> None:
        try:
            hello = link.receive(Deadline(_GRACE))
            if hello["kind"] != "hello":
                raise ValueError("it does not begin with hello")
            if hello["role"] == "sender":
                number = hello["number"]
                if not 0 < number < self._options.senders or number in self._senders:
                    raise ValueError(f"there is no place for sender {number}")
                link.name = f"sender {number}"
                self._senders[number] = link
                return
            wanted = hello["wanted"]
            names = {receiver.name for receiver in self._receivers}
            name = str(hello["name"])
            link.name = name if name not in names else f"{name} ({link.fileno()})"
            layout = None if wanted is None else from_wire(wanted)
            self._receivers.append(_Receiver(link, link.name, layout, bool(hello["keeps_base"])))
        except (LinkLostError, TimeoutError, ValueError, TypeError, KeyError):
            link.close()  # no member of a session

    def _hear_offers(self) -> None:
        """Get the layouts of the other senders, which come with each version."""
        for number in self._senders:
            self._expect(self._senders[number], "offer")

    def _note_offer(self, link: Link, message: Message) -> None:
        """Keep a layout, also where its version is given up: it is not sent again."""
        (number,) = (number for number, other in self._senders.items() if other is link)
        if message["layout"] is not None:
            self._offers[number] = from_wire(message["layout"])
            self._orders[number] = message["order"]

    def _drop(self, link: Link) -> None:
        """Go on without a member; a sender cannot be missed."""
        link.close()
        for receiver in self._receivers:
            if receiver.link is link:
                self._receivers.remove(receiver)
                self._lost.append(receiver.name)
                return
        raise PeerLostError(f"{link.name} is lost", (link.name,))

    def _tell(self, links: Sequence[Link], kind: str, **fields: object) -> None:
        for link in links:
            try:
                link.send(kind, **fields)
            except LinkLostError:
                self._drop(link)

    def _tell_all(self, kind: str, **fields: object) -> None:
        """Tell all that can be reached."""
        for link in self._links():
            try:
                link.send(kind, **fields)
            except LinkLostError:
                continue

    def _expect(self, link: Link, kind: str, deadline: Deadline | None = None) -> Message:
        """The next message of this kind of this attempt.

        Args:
            link: of the member.
            kind: of the message.
            deadline: None is the timeout from now on.

        Raises:
            InterruptedTransferError: the member has failed, or has left and is dropped.
        """
        deadline = deadline or Deadline(self._member.timeout)
        try:
            while True:
                message = link.receive(deadline)
                if message["kind"] == "bye":
                    raise LinkLostError(f"{link.name} has left")
                if message.get("epoch", self._epoch) != self._epoch:
                    continue
                if message["kind"] == "offer":
                    self._note_offer(link, message)
                if message["kind"] == kind:
                    return message
                if message["kind"] == "failed":
                    reason = f"{link.name}: {message['reason']}"
                    if kind == "stopped":
                        self._failed += [reason] if message["own"] else []
                        continue
                    if message["own"]:
                        raise _FollowerError(reason)
                    raise InterruptedTransferError(reason)
        except (LinkLostError, TimeoutError) as error:
            self._drop(link)
            raise InterruptedTransferError(f"{link.name} is lost: {error}") from error

    def _stop(self) -> None:
        """End an attempt on all members, and find out who is left."""
        self._member.drop_world()
        self._formed = []
        self._known = {}
        self._failed = []
        links = self._links()
        self._tell(links, "stop", epoch=self._epoch)
        deadline = Deadline(min(_GRACE, self._member.timeout))  # of all: the others wait
        for link in links:
            if link in self._links():
                try:
                    self._expect(link, "stopped", deadline)
                except InterruptedTransferError:
                    continue  # it was dropped

    # One attempt

    def _attempt(self, version: int, source: Source, provider: str, *, delta: bool) -> Report:
        member = self._member
        self._epoch += 1
        began = time.monotonic()
        transport = self._options.transport_on(provider)
        self._make_plan(source, provider)
        links = self._links()
        ids = self._new_ids(provider) if links != self._formed else []
        units = self._changed(source) if delta and not ids and links == self._informed else None
        known, self._known = self._known, {}  # a receiver may have parts of the new version now
        for number, link in enumerate(links):
            fields: dict[str, Any] = {"epoch": self._epoch, "provider": provider, "units": units}
            if link not in self._informed:
                fields["plan"] = self._plan
            if ids:
                nsenders = len(self._senders)
                place = number + 1 if number < nsenders else number - nsenders
                fields["world"] = {
                    "ids": ids,
                    "number": place,
                    "receivers": len(self._receivers),
                    "transport": transport,
                    "measures": self._options.measures_link,
                }
            self._tell([link], "begin", **fields)
        if links != self._links():
            raise InterruptedTransferError("a receiver has died")
        self._informed = links
        if ids:
            member.drop_world()
            member.form(
                [bytes.fromhex(text) for text in ids],
                links,
                sender=0,
                receiver=None,
                nreceivers=len(self._receivers),
                transport=transport,
                measures=self._options.measures_link,
            )
            self._formed = links
        sums = self._send(source, units)
        repaired = self._verify(sums, source, units)
        if all(receiver.keeps_base for receiver in self._receivers):
            self._known = {**known, **sums} if units is not None else sums
        receivers = tuple(receiver.name for receiver in self._receivers)
        self._tell(
            self._links(),
            "commit",
            version=version,
            receivers=receivers,
            lost=self._lost,
            repaired=repaired,
            link=member.link,
        )
        self._served = self._links()
        steps = member.steps_of(units)
        nbytes = sum(step.payload for step in steps)
        return Report(
            version,
            nbytes,
            time.monotonic() - began,
            tuple(receiver.name for receiver in self._receivers),
            tuple(self._lost),
            repaired,
            member.link,
        )

    def _make_plan(self, source: Source, provider: str) -> None:
        """Make the plan of the layouts, where they are not the same objects as before."""
        layouts: list[object] = [source.layout, source.is_lazy, *self._orders.values()]
        layouts += [self._offers[number] for number in sorted(self._offers)]
        layouts += [receiver.wanted for receiver in self._receivers]
        if len(layouts) == len(self._planned) and all(map(operator.is_, layouts, self._planned)):
            return
        offers = {**self._offers, 0: source.layout}
        bucket, direct = self._options.sizes(provider)
        plan = encode_plan(
            [offers[number] for number in sorted(offers)],
            [receiver.wanted for receiver in self._receivers],
            bucket_bytes=bucket,
            direct_bytes=direct,
            order=self._order(source),
        )
        if plan != self._plan:
            self._plan, self._planned, self._informed = None, [], []
            self._member.set_plan(plan)  # raises where the layouts do not fit
            self._plan = plan
        self._planned = layouts

    def _changed(self, source: Source) -> list[int] | None:
        """The units whose checksums are not those that the receivers have; None is all."""
        member = self._member
        if not self._known or self._order(source) is not None or member.ring is None:
            return None
        for link in self._senders.values():
            link.send("compare", epoch=self._epoch)
        own = [step for step in member.steps if step.sender == 0]
        sums = sums_of(own, member.ring, source, member.bindings)
        for link in self._senders.values():
            sums.update({int(n): int(value) for n, value in self._expect(link, "sums")["sums"]})
        return sorted(n for n, value in sums.items() if self._known.get(n) != value)

    def _order(self, source: Source) -> list[str] | None:
        """The order in which all senders make their tensors; None where they all exist."""
        orders = [order for order in (source.order, *self._orders.values()) if order is not None]
        if any(order != orders[0] for order in orders):
            raise ValueError(
                "metadata: the senders have different names or orders; each has the tensors of "
                "all senders, in the order in which they are made, and None for those of others"
            )
        return orders[0] if orders else None

    def _new_ids(self, provider: str) -> list[str]:
        return [bytes(nccl.get_unique_id(provider)).hex() for _ in range(self._options.senders)]

    def _send(self, source: Source, numbers: list[int] | None) -> Sums:
        """Have all senders send some units; the checksums."""
        member = self._member
        if member.world is None or member.ring is None:
            raise InterruptedTransferError("there is no communicator")
        steps = [step for step in member.steps_of(numbers) if step.sender == 0]
        with member.watcher.watch(self._links(), member.world.interrupt):
            progress = meter(member.progress, sum(step.payload for step in steps))
            sums = member.ring.send(steps, source, member.bindings, progress)
        for link in self._senders.values():
            sums.update({int(n): int(value) for n, value in self._expect(link, "sent")["sums"]})
        return sums

    def _verify(self, sums: Sums, source: Source, units: list[int] | None) -> tuple[str, ...]:
        """Have the receivers compare the checksums; send again what differs.

        Returns:
            The names of the tensors that were sent again.
        """
        repaired: dict[str, None] = {}
        steps = self._member.steps_of(units)
        for _ in range(_REPAIRS + 1):
            links = [receiver.link for receiver in self._receivers]
            self._tell(links, "check", epoch=self._epoch, digests=digests(steps, sums))
            bad: set[int] = set()
            deadline = Deadline(self._member.timeout)  # of all: the others wait
            for link in links:
                if link in self._links():
                    answer = self._checked(link, deadline)
                    bad.update(n for n, value in answer if sums[n] != value)
            if not self._receivers:
                raise InterruptedTransferError("all receivers are lost")
            if not bad:
                return tuple(repaired)
            repaired.update(
                dict.fromkeys(self._member.units[number].name for number in sorted(bad))
            )
            if self._links() != self._formed:
                raise InterruptedTransferError("a receiver has died")
            self._tell(self._links(), "repair", epoch=self._epoch, units=sorted(bad))
            sums = self._send(source, sorted(bad))
            steps = self._member.steps_of(sorted(bad))
        bad_names = tuple(repaired)
        raise ChecksumError(
            f"the checksums of {', '.join(bad_names)} differ on a receiver, also after they were "
            f"sent {_REPAIRS} times again",
            bad_names,
        )

    def _checked(self, link: Link, deadline: Deadline) -> list[tuple[int, int]]:
        """The checksums of a receiver where they differ; none where it has died: it is dropped."""
        try:
            answer = self._expect(link, "checked", deadline)
            return [(int(n), int(value)) for n, value in answer["sums"]]
        except InterruptedTransferError:
            if link in self._links():
                raise
            return []
