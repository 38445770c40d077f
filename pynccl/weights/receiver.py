"""WeightReceiver: a process that receives the weights of a session."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator, Mapping

from pynccl.store import Store
from pynccl.weights import messages
from pynccl.weights.errors import PeerLostError, SessionClosedError
from pynccl.weights.follower import Follower
from pynccl.weights.keys import trust_of
from pynccl.weights.layout import Layout
from pynccl.weights.meeting import check_address, join
from pynccl.weights.member import Member, checked_seconds, finalize
from pynccl.weights.memory import Library, Tensor
from pynccl.weights.report import Report
from pynccl.weights.source import Shard, local
from pynccl.weights.target import Commit, Target
from pynccl.weights.transfer import Sums, digest_of
from pynccl.weights.wire import Deadline, Link, LinkLostError

__all__ = ["WeightReceiver"]

_WITH = {True: "with", False: "without"}


class WeightReceiver(contextlib.AbstractContextManager["WeightReceiver"]):
    """Receives versions of weights from the senders of a session.

        receiver = WeightReceiver("trainer:29600", into=dict(model.named_parameters()))
        while True:
            report = receiver.receive()

    A receiver joins at the next version, even after it was dropped or its process was restarted.
    Only one thread may use it.

    Args:
        address: "host:port" at which sender 0 listens, or a store (of torch.distributed, or with
            its methods set, get and check) that the members share.
        into: the tensors to fill, or :class:`Shard` objects or DTensors for parts of them, by name.
            Values are converted if the sender's dtype differs. Tensors that are not named are not
            received. They must not overlap in memory, except for two names of the same tensor. None
            allocates all tensors from the sender's metadata.
        commit: when ``tensors`` change. "copy": each version is received into a second set, which
            is copied once all checksums are correct; this doubles the memory. "in_place": it is
            received directly into the tensors, without additional memory, but they contain parts of
            two versions during the transfer and, after a failed one, until the next: see
            ``is_whole``. "swap": two sets alternate, and ``tensors`` is the other dict afterwards.
            The default is "copy" with into, and "swap" without.
        name: for messages; defaults to the host and the process id.
        library: "torch" or "numpy", the library of the tensors. None is that of into, else torch if
            it is installed.
        device: the GPU, as for :class:`pynccl.nccl.Communicator`; None is that of into, else the
            current device of torch.
        timeout: seconds for each wait of a transfer.
        key: as for :class:`WeightSender`.
        insecure: as for :class:`WeightSender`.
        tls: a context that verifies the certificate of sender 0; None disables TLS.

    Raises:
        TypeError, ValueError: an argument is invalid, a tensor is not writable, or there is no key
            for an address that other machines can reach.
        PermissionError: the sender has a different key, or other users can read the key file.
        TimeoutError: the sender does not listen within timeout.

    Attributes:
        name: the name that was passed.
    """

    def __init__(
        self,
        address: str | Store,
        into: Mapping[str, Tensor | Shard] | None = None,
        *,
        commit: Commit | None = None,
        name: str | None = None,
        library: Library | None = None,
        device: int | None = None,
        timeout: float = 300.0,
        key: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_address(address)
        limit = checked_seconds(timeout)
        self._trust = trust_of(address, key, insecure=insecure, tls=tls)
        commit = commit or ("swap" if into is None else "copy")
        if commit not in ("swap", "copy", "in_place"):
            raise ValueError(f"commit: {commit!r} is not one of 'swap', 'copy', 'in_place'")
        if commit == ("copy" if into is None else "swap"):
            raise ValueError(f"commit: {commit!r} is for receivers {_WITH[into is None]} into")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name: expected a str or None, got {name!r}")
        self.name = f"{socket.gethostname()}:{os.getpid()}" if name is None else name
        self._address = address
        member = Member(limit, library, device)
        self._follower = _ReceivingFollower(member, into, commit)
        self._join(Deadline(limit))
        finalize(self, f"WeightReceiver {self.name!r}", self._follower.release)

    def _join(self, deadline: Deadline) -> None:
        """Connect to sender 0."""
        follower = self._follower
        hello = messages.ReceiverHello(self.name, follower.wanted)
        follower.enter(join(self._address, hello, self._trust, deadline, follower.timeout))

    def receive(self, timeout: float | None = None) -> Report:
        """Wait for the next version and commit it.

        A local exception during a transfer or a commit, such as KeyboardInterrupt or MemoryError,
        ends this receiver's part in the version: it leaves the session, the others continue, and
        the next call joins again.

        Args:
            timeout: seconds to wait for it to begin; None means no limit. The death of the sender
                ends the wait in any case.

        Returns:
            The report; ``tensors`` now hold the version.

        Raises:
            TimeoutError: no version began in time.
            PeerLostError: the sender is lost; the session has ended.
            ChecksumError: tensors arrived with errors, even after several attempts.
            WeightsError: the sender gave up the version. Another one may follow.
            SessionClosedError: the sender has closed the session.
        """
        deadline = Deadline(None if timeout is None else checked_seconds(timeout))
        if self._follower.has_left:
            try:
                self._join(deadline.within(self._follower.timeout))
            except OSError as error:
                raise PeerLostError(f"the sender is lost: {error}", ("sender 0",)) from error
        return self._follower.wait(deadline)

    def __iter__(self) -> Iterator[Report]:
        """Receive versions until the sender closes the session."""
        while True:
            try:
                yield self.receive()
            except SessionClosedError:
                return

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the committed version by name; those of into if it was passed."""
        target = self._follower.target
        return target.tensors if target is not None else {}

    @property
    def version(self) -> int | None:
        """The number of the version in ``tensors``; None if ``is_whole`` is False."""
        target = self._follower.target
        return target.version if target is not None else None

    @property
    def is_whole(self) -> bool:
        """Whether ``tensors`` are one version: False before the first, with commit="in_place"
        from the beginning of a transfer until it is committed, and with commit="copy" during the
        copy and after one that was interrupted, until the next version is committed.
        """
        return self.version is not None

    def close(self) -> None:
        """Leave the session. Closing twice is allowed.

        A receiver that is collected without it frees its resources, with a ResourceWarning.
        """
        self._follower.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _ReceivingFollower(Follower):
    """The state of a receiver."""

    is_sender = False

    def __init__(
        self, member: Member, into: Mapping[str, Tensor | Shard] | None, commit: Commit
    ) -> None:
        super().__init__(member)
        self.target: Target | None = None  # created when the memory is known
        self.commit = commit
        self.has_left = False  # because of a local error; it may join again
        self._into = into
        self._sums: Sums = {}
        if into:
            memory = member.memory_for(local(next(iter(into.values()))))
            self.target = Target(memory, into, commit)

    @property
    def wanted(self) -> Layout | None:
        """The layout to request; None is everything."""
        if self.target is not None:
            return self.target.wanted
        return None if self._into is None else {}  # the memory is known when a version begins

    @property
    def timeout(self) -> float:
        return self._member.timeout

    def enter(self, link: Link) -> None:
        """Use a new connection to the leader."""
        self._link = link
        self._epoch = -1
        self.has_left = False

    def close(self) -> None:
        self.has_left = False
        super().close()

    def _begin(self, message: messages.Begin) -> None:
        if self.target is None:
            memory = self._member.memory_for(None, message.provider)
            self.target = Target(memory, self._into, self.commit)
        self.target.begin(self._member.layout)

    def _transfer(self) -> None:
        member, target = self._member, self.target
        if target is None:
            raise RuntimeError("the memory of the session is not known")
        with member.transfer([self._link]) as ring:
            self._sums = ring.receive(member.steps, target)
            number = ring.world.receiver
        units = (unit for unit in member.units if number in unit.receivers)
        target.check_tied(units, self._sums)

    def _count(self) -> int:
        member = self._member
        receiver = member.ring.world.receiver if member.ring is not None else None
        return sum(step.payload(receiver) for step in member.steps)

    def _handle(self, message: messages.Message) -> None:
        match message:
            case messages.Check() if message.epoch == self._epoch:
                self._check(message)
            case messages.Commit():
                if self.target is not None:
                    self.target.commit(message.version)
                with contextlib.suppress(LinkLostError):  # it is committed nevertheless
                    self._link.send(messages.Committed(self._epoch))

    def _check(self, message: messages.Check) -> None:
        """Answer with the checksums of the segments whose digests differ."""
        ring = self._member.ring
        if ring is None:
            return  # this member has given up the attempt, as the leader will read
        segments = [segment for step in self._member.steps for segment in step.segments]
        if len(message.digests) != len(segments):
            self._link.lose("digests of segments other than those sent")
            return
        different: Sums = {}
        for segment, digest in zip(segments, message.digests, strict=True):
            if ring.world.receiver not in segment.receivers:
                continue
            if digest_of(segment, self._sums) != digest:
                different.update((n, self._sums[n]) for n in segment.numbers)
        self._link.send(messages.Checked(self._epoch, different))

    def _abandon(self, error: BaseException) -> None:
        """Leave the session; the others continue."""
        self.has_left = True
        self._link.close()
