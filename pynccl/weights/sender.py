"""WeightSender: a process that sends the weights of a session, or a part of them."""

from __future__ import annotations

import contextlib
import operator
import os
import ssl
from collections.abc import Mapping

from pynccl.store import Store
from pynccl.weights import messages
from pynccl.weights.entrance import Entrance
from pynccl.weights.errors import SessionClosedError
from pynccl.weights.follower import End, Follower
from pynccl.weights.keys import trust_of
from pynccl.weights.layout import Layout
from pynccl.weights.leader import Leader, Options
from pynccl.weights.meeting import check_address, join
from pynccl.weights.member import (
    InterruptedTransferError,
    Member,
    checked_seconds,
    finalize,
)
from pynccl.weights.memory import Library
from pynccl.weights.plan import Step
from pynccl.weights.report import Report
from pynccl.weights.source import Gathered, Held, Metadata, Source, Sources, local
from pynccl.weights.wire import Deadline, Link, LinkLostError, post_all

__all__ = ["WeightSender"]

_PAGE = 4096  # bytes
_LARGEST = (1 << 63) - 1


class WeightSender(contextlib.AbstractContextManager["WeightSender"]):
    """Sends versions of weights to the receivers of a session.

        sender = WeightSender("0.0.0.0:29600", receivers=2)
        report = sender.send(dict(model.named_parameters()))

    If there are several senders, all must call :meth:`send` for each version. Each sends its part
    of the tensors, or its part of each tensor. Only one thread may use a sender.

    Args:
        address: "host:port" at which sender 0 listens; port 0 is any free port. Or a store (of
            torch.distributed, or with its methods set, get and check) that the members share.
        rank: the number of this sender.
        senders: the number of senders.
        receivers: the number of receivers that the first version waits for. Others join at later
            versions.
        bucket_bytes: size of a bucket, of which each member has two; larger tensors are sent in
            parts of this size. None is 16 MiB on CPUs and 64 MiB on GPUs.
        direct_bytes: tensors of at least this size are broadcast directly from and to their memory
            if they are contiguous and of the same dtype; smaller ones are packed in buckets. None
            is 256 KiB on CPUs and 4 MiB on GPUs.
        library: "torch" or "numpy"; None is that of the first tensor.
        device: the GPU, as for :class:`pynccl.nccl.Communicator`; None is that of the tensors.
        timeout: seconds for each wait of a transfer.
        key: the session's key, whose knowledge all members prove: a secret of at least 32
            characters, or the path of a file with it that only its owner can read. None uses
            PYNCCL_WEIGHTS_KEY; if that is not set, sender 0 creates a key, which the others find in
            the store or, at a loopback address, in a file of this user.
        insecure: use no key: any process that can connect may join. It must be the same on all
            members.
        tls: a context with the certificate of sender 0 (on the others, one that verifies it), which
            encrypts the control connections. None disables TLS; see docs/security.md.

    Raises:
        TypeError, ValueError: an argument is invalid, or there is no key for an address that other
            machines can reach.
        PermissionError: sender 0 has a different key, or other users can read the key file.
        OSError: sender 0 cannot listen at the address.
        TimeoutError: sender 0 does not listen within timeout.

    Attributes:
        address: the address at which sender 0 listens; "" on other senders.
        key: on sender 0, the key that was passed, which receivers need as well. None if they find
            it by themselves or need none, and on other senders.
    """

    def __init__(
        self,
        address: str | Store,
        *,
        rank: int = 0,
        senders: int = 1,
        receivers: int = 1,
        bucket_bytes: int | None = None,
        direct_bytes: int | None = None,
        library: Library | None = None,
        device: int | None = None,
        timeout: float = 300.0,
        key: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_address(address, listens=rank == 0)
        if not 0 <= rank < senders:
            raise ValueError(f"rank: {rank} is not in [0, {senders})")
        if receivers < 1:
            raise ValueError(f"receivers: {receivers} must be at least 1")
        if bucket_bytes is not None and (bucket_bytes < _PAGE or bucket_bytes % _PAGE):
            raise ValueError(f"bucket_bytes: {bucket_bytes} is not a multiple of {_PAGE}")
        if direct_bytes is not None and direct_bytes < 1:
            raise ValueError(f"direct_bytes: {direct_bytes} must be at least 1")
        limit = checked_seconds(timeout)
        trust = trust_of(address, key, insecure=insecure, tls=tls)
        self.address = ""
        self.key: str | None = None
        self._source: Source | None = None
        self._member = Member(limit, library, device)
        self._session: Leader | _SendingFollower
        if rank == 0:
            entrance = Entrance(address, trust, senders, limit)
            self.address, self.key = entrance.address, entrance.key
            options = Options(senders, receivers, bucket_bytes, direct_bytes)
            self._session = Leader(self._member, entrance, options)
        else:
            link = join(address, messages.SenderHello(rank), trust, Deadline(limit), limit)
            self._session = _SendingFollower(self._member, link, rank)
        finalize(self, f"WeightSender {rank}", self._session.release)

    def send(
        self,
        tensors: Sources,
        *,
        version: int | None = None,
        metadata: Metadata | None = None,
    ) -> Report:
        """Send a version, and wait until all receivers have committed it.

        A receiver that dies, does not respond within the session's timeout, or has a local error is
        dropped and named in the report; the others get the version.

        Args:
            tensors: by name: tensors, :class:`Shard` objects or DTensors. Or, with metadata, a
                function that returns an iterator of names and tensors, which are produced one at a
                time, for example gathered from the trainer's ranks. It is called again if the
                version must be sent again, and must then return another iterator.
            version: its number, the same on all senders; None is one more than the last one.
            metadata: of all tensors that a function produces, in its order: a :class:`Spec` for
                those that this member sends, None for those that others send. All senders that pass
                metadata must pass the same names in the same order.

        Returns:
            The report.

        Raises:
            TypeError, ValueError: an argument is invalid, or the senders' layouts or version
                numbers do not match; nothing was sent. Senders other than the first raise
                WeightsError.
            PeerLostError: a sender or all receivers are lost, or members did not join within the
                timeout; the session has ended.
            ChecksumError: tensors arrived with errors, even after several attempts, or they could
                not be produced again; no receiver has committed the version.
            WeightsError: there are no receivers, all of them have local errors, or another sender
                gave up the version.
        """
        number = self.version + 1 if version is None else operator.index(version)
        if not -_LARGEST <= number <= _LARGEST:
            raise ValueError(f"version: {number} does not fit in 64 bits")
        source = self._source = self._source_of(tensors, metadata)
        return self._session.transfer(number, source)

    @property
    def version(self) -> int:
        """The number of the last version that was committed; 0 before the first."""
        return self._session.version

    def waiting(self) -> int:
        """The number of receivers that connected since the last version; they join at the next one.

        It is for sender 0, which can then send them the version that they lack.

        Returns:
            The number; 0 on other senders.
        """
        return self._session.waiting() if isinstance(self._session, Leader) else 0

    def abort(self) -> None:
        """End the session while another thread is in send(), which then raises a PeerLostError.

        Receivers raise it as well. close() is still required.
        """
        self._session.abort()

    def close(self) -> None:
        """End the session for all members. Closing twice is allowed.

        A sender that is collected without it frees its resources, with a ResourceWarning; the
        others then get a PeerLostError.
        """
        self._session.close()
        self._source = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _source_of(self, tensors: Sources, metadata: Metadata | None) -> Source:
        if isinstance(tensors, Mapping):
            if metadata is not None:
                raise ValueError("metadata: only for tensors that a function produces")
            if isinstance(self._source, Held) and self._source.is_for(tensors):
                return self._source
            first = local(next(iter(tensors.values()))) if tensors else None
            return Held(tensors, self._member.memory_for(first))
        if not callable(tensors):
            raise TypeError(
                "tensors: expected a mapping, or a function that returns an iterator of names and "
                f"tensors, got {type(tensors).__name__}; pass the function that creates a generator"
            )
        if metadata is None:
            raise ValueError("metadata: required for tensors that a function produces")
        return Gathered(tensors, metadata, self._member.memory_for(None))


class _SendingFollower(Follower):
    """A sender other than the first."""

    is_sender = True

    def __init__(self, member: Member, link: Link, rank: int) -> None:
        super().__init__(member)
        self._link = link
        self.version = 0
        self._rank = rank
        self._source: Source | None = None
        self._offered: tuple[Layout, list[str] | None] | None = None
        self._is_settled = True  # whether the end of the version of the last offer was read

    def transfer(self, version: int, source: Source) -> Report:
        """Offer a version, and take part in it."""
        if self._closed:
            raise SessionClosedError("the session is closed")
        offered = source.layout, source.order
        layout = None if offered == self._offered else source.layout
        self._source = source
        try:
            try:
                self._settle()
                self._is_settled = False
                self._link.send(messages.Offer(version, layout, source.order))
            except LinkLostError as error:
                raise self._lost(error) from error
            self._offered = offered
            report = self.wait(Deadline(3 * self._member.timeout))
        finally:
            self._source = None
        self.version = report.version
        return report

    def _begin(self, message: messages.Begin) -> None:
        """Do nothing: the source exists."""

    def _transfer(self) -> None:
        with self._member.transfer([self._link]) as ring:
            sums = ring.send(self._steps(), self._current_source())
        self._link.send(messages.Sent(self._epoch, sums))

    def _handle(self, message: messages.Message) -> None:
        self._is_settled |= isinstance(message, End)

    def _count(self) -> int:
        return sum(step.payload() for step in self._steps())

    def _steps(self) -> list[Step]:
        return [step for step in self._member.steps if step.sender == self._rank]

    def _current_source(self) -> Source:
        if self._source is None:
            raise RuntimeError("no version is being sent")
        return self._source

    def _abandon(self, error: BaseException) -> None:
        """End the version for all members."""
        post_all([self._link], messages.Stopped(self._epoch))

    def _settle(self) -> None:
        """Read the end of a version that this sender has abandoned."""
        deadline = Deadline(3 * self._member.timeout)
        while not self._is_settled:
            message = self._next(deadline)
            match message:
                case None:
                    raise self._silent()
                case messages.Begin():
                    self._epoch = message.epoch
                    self._give_up(InterruptedTransferError("send() was interrupted"), own=True)
                case messages.Stop():
                    self._link.send(messages.Stopped(message.epoch))
                case messages.Commit() | messages.Refused():
                    self._is_settled = True
                case messages.Fail() | messages.Bye():
                    self._ended(message)  # raises
