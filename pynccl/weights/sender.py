"""WeightSender: a process that sends the weights of a session, or a part of them."""

from __future__ import annotations

import os
import ssl
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from pynccl.store import Store
from pynccl.weights.errors import WeightsError
from pynccl.weights.follower import Follower
from pynccl.weights.keys import trust_of
from pynccl.weights.layout import Layout
from pynccl.weights.leader import Leader
from pynccl.weights.meeting import Meeting, check_address, join
from pynccl.weights.member import Member, checked_seconds, finalize
from pynccl.weights.memory import Library, Memory, library_of, memory_of, place_of
from pynccl.weights.messages import Offer, SenderHello, Transport
from pynccl.weights.options import Options
from pynccl.weights.plan import Step
from pynccl.weights.progress import OnProgress, meter
from pynccl.weights.report import Report
from pynccl.weights.source import Gather, Metadata, Source, Sources, gathered, held, local
from pynccl.weights.transfer import Sums, sums_of
from pynccl.weights.wire import Deadline

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["WeightSender"]

_PAGE = 4096  # bytes


class WeightSender:
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
            parts of this size. None is 1 MiB for shared buckets, else 16 MiB on CPUs and 64 MiB on
            GPUs.
        direct_bytes: tensors of at least this size are broadcast directly from and to their memory
            if they are contiguous and of the same dtype; smaller ones are packed in buckets. None
            is 256 KiB on CPUs and 4 MiB on GPUs.
        transport: "shared", on CPUs only: receivers copy from the senders' buckets, which they can
            read. "broadcast": NCCL operations. The setting of sender 0 counts. None is "shared" on
            CPUs, where "broadcast" serves to test the GPU path.
        library: "torch" or "numpy"; None is that of the first tensor.
        device: the GPU, as for :class:`pynccl.nccl.Communicator`; None is that of the tensors.
        timeout: seconds for each wait of a transfer.
        progress: called during transfers with the bytes that this sender has sent and its total; a
            :class:`ProgressBar`, a function, or None.
        measure_link: measure the bandwidth of new communicators by four broadcasts of a bucket, for
            ``Report.share``. The setting of sender 0 counts.
        key: the session's key, which all members prove to know: a secret of at least 32 characters,
            or the path of a file that contains it and that only its owner can read. None uses
            PYNCCL_WEIGHTS_KEY; if that is not set, sender 0 creates a key, which the others find in
            the store or, at a loopback address, in a file of this user.
        insecure: use no key: any process that can connect may join. It must be the same on all
            members.
        tls: encrypts the control connections: a context with the certificate of sender 0 (on the
            others, one that verifies it). None disables TLS; see docs/security.md.

    Raises:
        TypeError, ValueError: an argument is invalid, or there is no key for an address that other
            machines can reach.
        PermissionError: sender 0 has another key, or other users can read the key file.
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
        transport: Transport | None = None,
        library: Library | None = None,
        device: int | None = None,
        timeout: float = 300.0,
        progress: OnProgress | None = None,
        measure_link: bool = False,
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
        if transport not in {"shared", "broadcast", None}:
            raise ValueError(f"transport: {transport!r} is neither 'shared' nor 'broadcast'")
        limit = checked_seconds("timeout", timeout)
        trust = trust_of(address, key, insecure=insecure, tls=tls)
        self.address = ""
        self.key: str | None = None
        self._rank = rank
        self._library = library
        self._version = 0
        self._source: Source | None = None
        self._offered: tuple[Layout, list[str] | None] | None = None
        self._provider = "host"
        self._member = Member(limit, device, progress)
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        if rank == 0:
            meeting = Meeting(address, trust, senders, limit)
            self.address, self.key = meeting.address, meeting.key
            options = Options(
                senders, receivers, bucket_bytes, direct_bytes, transport, measure_link
            )
            self._leader = Leader(self._member, meeting, options)
        else:
            link = join(address, SenderHello(rank), trust, Deadline(limit), limit)
            self._follower = Follower(self._member, link, _Role(self), is_sender=True)
        release = (self._leader or self._follower).release  # type: ignore[union-attr]
        finalize(self, f"WeightSender {rank}", release)

    def send(
        self,
        tensors: Sources,
        *,
        version: int | None = None,
        metadata: Metadata | None = None,
        delta: bool = False,
    ) -> Report:
        """Send a version, and wait until all receivers have committed it.

        A receiver that dies, does not respond within the session's timeout, or has a local error is
        dropped and named in the report; the others get the version.

        Args:
            tensors: by name: tensors, :class:`Shard` objects or DTensors. Or, with metadata, a
                function that returns an iterator of names and tensors, which are produced one at a
                time, for example gathered from the trainer's ranks. It is called again if the
                version must be sent again.
            version: its number, the same on all senders; None is one more than the last one.
            metadata: of all tensors that a function produces, in its order: a :class:`Spec` for
                those that this member sends, None for those that others send. All senders that pass
                metadata must pass the same names in the same order.
            delta: send only the parts, of at most bucket_bytes, whose checksums differ from those
                of the last version. The setting of sender 0 counts. Everything is sent if members
                have joined or left since then, after a version that failed, to receivers with
                commit="swap", and from functions.

        Returns:
            The report.

        Raises:
            TypeError, ValueError: an argument is invalid, or the senders' layouts or version
                numbers do not match; nothing was sent. Senders other than the first raise
                WeightsError.
            PeerLostError: a sender or all receivers are lost, or members have not joined within the
                timeout; the session has ended.
            ChecksumError: tensors arrived with errors, even after they were sent again; no receiver
                has committed the version.
            WeightsError: there are no receivers, all of them have local errors, or another sender
                gave up the version.
        """
        source = self._source_of(tensors, metadata)
        self._source = source
        number = self._version + 1 if version is None else version
        if self._leader is not None:
            try:
                report = self._leader.transfer(number, source, self._provider, delta=delta)
            finally:
                self._version = self._leader.version
        elif self._follower is not None:
            offered = source.layout, source.order
            layout = None if offered == self._offered else source.layout
            self._follower.offer(Offer(number, layout, source.order))
            self._offered = offered
            report = self._follower.wait(Deadline(3 * self._member.timeout))
        else:
            raise WeightsError("the session is closed")
        self._version = report.version
        return report

    @property
    def version(self) -> int:
        """The number of the last version that was committed; 0 before the first."""
        return self._version

    def waiting(self) -> int:
        """The number of receivers that connected since the last version; they join at the next one.

        It is for sender 0, which can then send them the version that they lack.

        Returns:
            The number; 0 on other senders.
        """
        return self._leader.waiting() if self._leader is not None else 0

    def abort(self) -> None:
        """End the session while another thread is in send(), which then raises a PeerLostError.

        Receivers raise it as well. close() is still required.
        """
        if self._leader is not None:
            self._leader.abort()
        if self._follower is not None:
            self._follower.abort()

    def close(self) -> None:
        """End the session for all members. Closing twice is allowed.

        A sender that is collected without it frees its resources, with a ResourceWarning; the
        others then get a PeerLostError.
        """
        if self._leader is not None:
            self._leader.close()
        if self._follower is not None:
            self._follower.close()
        self._leader = self._follower = self._source = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _source_of(self, tensors: Sources, metadata: Metadata | None) -> Source:
        if isinstance(tensors, Mapping):
            if metadata is not None:
                raise ValueError("metadata: it is for tensors that a function makes")
            first = local(next(iter(tensors.values()))) if tensors else None
            return held(tensors, self._memory_of(first), self._source)
        if not callable(tensors):
            raise TypeError(f"tensors: expected a mapping or a function, got {tensors!r:.60}")
        if metadata is None:
            raise ValueError("metadata: a function that makes tensors needs it")
        gather: Gather = tensors
        return gathered(gather, metadata, self._memory_of(None))

    def _memory_of(self, tensor: object) -> Memory:
        member = self._member
        if member.memory is None:
            library = self._library or library_of(tensor)
            if tensor is not None:
                self._provider, gpu = place_of(tensor)
                member.device = gpu if member.device is None else member.device
            elif isinstance(member.device, int):
                self._provider = "cuda"
            device = member.device if isinstance(member.device, int) else 0
            member.memory = memory_of(library, self._provider, device)
        return member.memory


class _Role:
    def __init__(self, sender: WeightSender) -> None:
        self._sender: WeightSender = weakref.proxy(sender)  # it refers to this one

    def begin(self, provider: str) -> None:
        """Do nothing: the source already exists."""

    def _own(self, steps: list[Step]) -> list[Step]:
        return [step for step in steps if step.sender == self._sender._rank]

    def run(self, steps: list[Step]) -> Sums:
        member, source = self._sender._member, self._sender._source
        if member.ring is None or source is None:
            raise RuntimeError("there is no communicator")
        own = self._own(steps)
        progress = meter(member.progress, sum(step.payload for step in own))
        return member.ring.send(own, source, member.bindings, progress)

    def compare(self, steps: list[Step]) -> Sums:
        member, source = self._sender._member, self._sender._source
        if member.ring is None or source is None:
            raise RuntimeError("there is no communicator")
        return sums_of(self._own(steps), member.ring, source, member.bindings)

    def nbytes(self, steps: list[Step]) -> int:
        return sum(step.payload for step in self._own(steps))

    def commit(self, version: int) -> None:
        """Do nothing: a sender has no state to commit."""
