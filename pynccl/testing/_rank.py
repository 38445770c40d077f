"""Rank, the first argument of a launched function, and Outcome, how a rank ended."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pynccl import nccl

__all__ = ["Outcome", "Rank"]


@dataclass
class Outcome:
    """How one rank ended: with a value, an exception, or the death of its process.

    Attributes:
        rank: the rank.
        value: what the function returned.
        error: the exception that it raised. One that cannot be pickled is replaced by a
            RuntimeError with its text.
        trace: the traceback of ``error``, or the stacks of the threads if the process died or was
            killed at the deadline.
        died: why the process ended, such as "killed by SIGSEGV"; "" if it did not.
    """

    rank: int
    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    died: str = ""

    @property
    def ok(self) -> bool:
        """Whether the function returned."""
        return self.error is None and not self.died


@dataclass
class Rank:
    """One rank of a launch: the first argument of the launched function.

    Attributes:
        rank: this rank, starting at 0.
        world_size: the number of ranks.
        provider: the provider of :attr:`comm`, ``"host"`` or ``"cuda"``.
        unique_ids: unique ids that all ranks of this launch share, 128 bytes each.
        init_method: a URL for ``pynccl.init_process_group(init_method=...)``, new for each launch.
            Ranks that are threads share a process and cannot use it.
        report: sends a value to the launching process, where :meth:`Run.reports` and
            :meth:`Run.gather_reports` return it.
    """

    rank: int
    world_size: int
    provider: str
    unique_ids: list[bytes] = field(repr=False)
    init_method: str = field(repr=False)
    report: Callable[[Any], None] = field(repr=False)
    _comm: nccl.Communicator | None = field(default=None, repr=False)
    _made: list[weakref.ref[nccl.Communicator]] = field(default_factory=list, repr=False)
    # Reports the start and the end of creating a communicator to the launching process.
    _joins: Callable[[int, bool], None] | None = field(default=None, repr=False)

    @property
    def device(self) -> int | None:
        """The GPU of this rank, or None for "host". Ranks share GPUs if there are too few."""
        from pynccl import libraries

        if self.provider != "cuda":
            return None
        return self.rank % libraries.device_count(libraries.load("cuda"))

    def communicator(self, unique_id: int = 0, **options: Any) -> nccl.Communicator:  # noqa: ANN401
        """Create a communicator of all ranks; every rank must call it.

        Args:
            unique_id: the index of the unique id in :attr:`unique_ids`; each can be used once.
            **options: the options of :class:`pynccl.nccl.Communicator`.

        Returns:
            The communicator, which the caller closes.

        Raises:
            IndexError: there are fewer unique ids.
            NcclError: the communicator cannot be created; also the other errors of
                :class:`pynccl.nccl.Communicator`.
        """
        from pynccl import nccl

        options.setdefault("provider", self.provider)
        options.setdefault("device", self.device)
        id_ = self.unique_ids[unique_id]
        tell = self._joins or (lambda _index, _done: None)
        tell(unique_id, False)
        comm = nccl.Communicator(self.world_size, id_, self.rank, **options)
        tell(unique_id, True)
        self._made.append(weakref.ref(comm))
        return comm

    @property
    def comm(self) -> nccl.Communicator:
        """The communicator of the first unique id.

        It is created on first use and closed when the function has returned.
        """
        # Not functools.cached_property: before Python 3.12 all instances share one lock, and ranks
        # that are threads wait for each other here.
        if self._comm is None:
            self._comm = self.communicator()
        return self._comm

    def _finish(self, *, failed: bool) -> None:
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort() if failed else comm.close()
        # The frames of a caught exception form reference cycles. An open communicator in them would
        # prevent hostnccl from detecting a deadlock of the next function in this process.
        if any((made := each()) is not None and not made.closed for each in self._made):
            gc.collect()
