"""WeightReceiver: a process that receives the weights of a session."""

from __future__ import annotations

import os
import socket
import ssl
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from pynccl.store import Store
from pynccl.weights.errors import PeerLostError, SessionClosedError
from pynccl.weights.follower import Follower
from pynccl.weights.keys import trust_of
from pynccl.weights.meeting import check_address, join
from pynccl.weights.member import Member, checked_seconds, finalize
from pynccl.weights.memory import (
    Library,
    Memory,
    Tensor,
    current_gpu,
    library_of,
    memory_of,
    place_of,
)
from pynccl.weights.messages import ReceiverHello
from pynccl.weights.plan import Step
from pynccl.weights.progress import OnProgress, meter
from pynccl.weights.report import Report
from pynccl.weights.source import Shard, local
from pynccl.weights.target import Commit, Target
from pynccl.weights.transfer import Sums, nbytes_for
from pynccl.weights.wire import Deadline

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["WeightReceiver"]

_WITH = {True: "with", False: "without"}


class WeightReceiver:
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
        progress: called during transfers with the bytes that have arrived and the total; a
            :class:`ProgressBar`, a function, or None.
        key: the session's key, which all members prove to know: a secret of at least 32 characters,
            or the path of a file that contains it and that only its owner can read. None uses
            PYNCCL_WEIGHTS_KEY; if that is not set, sender 0 creates a key, which the others find in
            the store or, at a loopback address, in a file of this user.
        insecure: use no key: any process that can connect may join. It must be the same on all
            members.
        tls: encrypts the control connections: a context with the certificate of sender 0 (on the
            others, one that verifies it). None disables TLS; see docs/security.md.

    Raises:
        TypeError, ValueError: an argument is invalid, a tensor is not writable, or there is no key
            for an address that other machines can reach.
        PermissionError: the sender has another key, or other users can read the key file.
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
        progress: OnProgress | None = None,
        key: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_address(address)
        limit = checked_seconds("timeout", timeout)
        self._trust = trust_of(address, key, insecure=insecure, tls=tls)
        commit = commit or ("swap" if into is None else "copy")
        if commit not in ("swap", "copy", "in_place"):
            raise ValueError(f"commit: {commit!r} is not one of 'swap', 'copy', 'in_place'")
        if commit == ("copy" if into is None else "swap"):
            raise ValueError(f"commit: {commit!r} is for receivers {_WITH[into is None]} into")
        self.name = f"{socket.gethostname()}:{os.getpid()}" if name is None else name
        self._into = into
        self._commit: Commit = commit
        self._library = library
        self._address = address
        self._member = Member(limit, device, progress)
        self._target: Target | None = None
        if into:
            first = local(next(iter(into.values())))
            self._library = library or library_of(first)
            provider, gpu = place_of(first)
            self._member.device = gpu if device is None else device
            self._set_memory(provider)
        self._follower = self._join(Deadline(limit))
        self._finalizer = self._new_finalizer()

    def _new_finalizer(self) -> weakref.finalize[..., WeightReceiver]:
        return finalize(self, f"WeightReceiver {self.name!r}", self._follower.release)

    def _join(self, deadline: Deadline) -> Follower:
        """Connect to sender 0."""
        wanted = self._target.wanted if self._target is not None else None
        if self._into is not None and not self._into:
            wanted = {}  # nothing; the memory is known when a version begins
        hello = ReceiverHello(self.name, wanted, self._commit != "swap")
        link = join(self._address, hello, self._trust, deadline, self._member.timeout)
        return Follower(self._member, link, _Role(self), is_sender=False)

    def receive(self, timeout: float | None = None) -> Report:
        """Wait for the next version and commit it.

        A local exception during a transfer or a commit, such as KeyboardInterrupt or MemoryError,
        ends this receiver's part in the version: it leaves the session, the others continue, and
        the next call joins again.

        Args:
            timeout: seconds until it begins; None is no limit. The death of the sender ends the
                wait in any case.

        Returns:
            The report; ``tensors`` now hold the version.

        Raises:
            TimeoutError: no version has begun in time.
            PeerLostError: the sender is lost; the session has ended.
            ChecksumError: tensors arrived with errors, even after they were sent again.
            WeightsError: the sender gave up the version. Another one may follow.
            SessionClosedError: the sender has closed the session.
        """
        deadline = Deadline(None if timeout is None else checked_seconds("timeout", timeout))
        if self._follower.has_left:
            try:
                self._follower = self._join(deadline.within(self._member.timeout))
            except OSError as error:
                raise PeerLostError(f"the sender is lost: {error}", ("sender 0",)) from error
            self._finalizer.detach()
            self._finalizer = self._new_finalizer()
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
        return self._target.tensors if self._target is not None else {}

    @property
    def version(self) -> int | None:
        """The number of the version in ``tensors``; None if ``is_whole`` is False."""
        return self._target.version if self._target is not None else None

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _set_memory(self, provider: str) -> Memory:
        member = self._member
        if member.memory is None:
            library = self._library or library_of(None)
            if provider == "cuda" and member.device is None:
                member.device = current_gpu()
            device = member.device if isinstance(member.device, int) else 0
            member.memory = memory_of(library, provider, device)
            self._target = Target(member.memory, self._into, self._commit)
        return member.memory


class _Role:
    def __init__(self, receiver: WeightReceiver) -> None:
        self._receiver: WeightReceiver = weakref.proxy(receiver)  # it refers to this one
        self._member = receiver._member

    @property
    def _target(self) -> Target:
        target = self._receiver._target
        if target is None:
            raise RuntimeError("the memory of the session is not known")
        return target

    def begin(self, provider: str) -> None:
        self._receiver._set_memory(provider)
        self._target.begin(self._member.layout)

    def run(self, steps: list[Step]) -> Sums:
        member = self._member
        if member.ring is None:
            raise RuntimeError("there is no communicator")
        progress = meter(member.progress, self.nbytes(steps))
        sums = member.ring.receive(steps, self._target, member.bindings, progress)
        number = member.ring.world.receiver
        units = (unit for unit in member.units if number in unit.receivers)
        self._target.check_tied(units, sums, member.steps)
        return sums

    def compare(self, steps: list[Step]) -> Sums:
        raise RuntimeError("a receiver has nothing to compare")

    def nbytes(self, steps: list[Step]) -> int:
        number = self._member.world.receiver if self._member.world is not None else None
        return sum(nbytes_for(step, number) for step in steps)

    def commit(self, version: int) -> None:
        self._target.commit(version)
