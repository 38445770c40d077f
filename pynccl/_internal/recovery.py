"""Communicator.recover(): a communicator of the surviving ranks.

The ranks agree on the surviving ranks, which then create the new communicator. A library whose
ranks share memory provides an agreement of its own; otherwise the ranks agree through a store, and
create the communicator from a new id: once its network has noticed that a rank died, NCCL refuses
to shrink or split a communicator, even after a revocation (init.cc:2711 of 2.28.9). NCCL before
2.28.7 cannot revoke the old communicator, which is then aborted before the ranks agree.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pynccl import _C
from pynccl._internal.arguments import integer, wrong_type
from pynccl._internal.creation import share_id
from pynccl.errors import NcclRemoteError

if TYPE_CHECKING:
    import pynccl.store
    from pynccl._C import Communicator, Config

__all__ = ["Rounds", "recover"]

_REMOTE_ERROR = 6  # ncclRemoteError
_PAUSE = 0.01  # seconds between polls of a store


class Rounds:
    """A rank's view of the agreements of some ranks through a store.

    Args:
        path: the prefix of their keys in the store.
        nranks: the number of ranks.

    Attributes:
        path: as given.
        nranks: as given.
        number: the number of the last agreement.
        members: the ranks that survived it.
    """

    def __init__(self, path: str, nranks: int) -> None:
        self.path = path
        self.nranks = nranks
        self.number = 0
        self.members = list(range(nranks))

    def agree(
        self,
        store: pynccl.store.Store,
        rank: int,
        timeout: float,
        lost: Iterable[int] = (),
        gone: Callable[[int], object] = lambda _rank: False,
    ) -> list[int]:
        """Agree on the surviving ranks. The first proposal in the store wins.

        Args:
            store: a store shared by the ranks.
            rank: this rank.
            timeout: seconds to wait for ranks that are neither lost nor gone.
            lost: ranks not to wait for.
            gone: returns whether a missing rank has died.

        Returns:
            The excluded ranks, including those of earlier agreements.

        Raises:
            NcclRemoteError: the other ranks continue without this one.
        """
        end = time.monotonic() + timeout
        number = f"{self.path}/{self.number + 1}"
        result = f"{number}/left"

        def came(member: int) -> str:
            return f"{number}/came/{member}"

        store.set(came(rank), "1")
        while not store.check([result]):
            missing = [m for m in self.members if m not in lost and not store.check([came(m)])]
            if time.monotonic() >= end or all(gone(member) for member in missing):
                left = [member for member in self.members if store.check([came(member)])]
                store.compare_set(result, "", ",".join(map(str, left)))
            else:
                time.sleep(_PAUSE)
        members = [int(member) for member in store.get(result).decode().split(",")]
        if rank not in members:
            raise NcclRemoteError(
                f"rank {rank} was excluded: the other ranks continue without it, because it did "
                "not take part in their recovery in time",
                _REMOTE_ERROR,
                "recover",
                rank,
            )
        self.number += 1
        self.members = members
        return [member for member in range(self.nranks) if member not in members]


# None: the communicator was replaced.
_rounds: weakref.WeakKeyDictionary[Communicator, Rounds | None] = weakref.WeakKeyDictionary()
_aborted: weakref.WeakSet[Communicator] = weakref.WeakSet()  # by recover(), which may have failed


def recover(
    comm: Communicator,
    timeout: float = 30.0,
    *,
    store: pynccl.store.Store | None = None,
    exclude: Sequence[int] = (),
    config: Config | None = None,
) -> Communicator:
    """Create a communicator of the surviving ranks, which replaces this one.

        comm = comm.recover(timeout=10)

    All surviving ranks call it, after a rank died or was stopped, or after this communicator
    expired or failed. It revokes the communicator, so that ranks waiting for this one raise. The
    ranks then agree on the surviving ranks and create a new communicator by shrink(abort=True) or
    split(), on GPUs with a store from a new unique id. Ranks keep their order and, without config,
    the configuration and time limits. All get a communicator of the same ranks, or all raise. This
    communicator is then aborted, with its windows, registrations and operators; the output of its
    unfinished operations is undefined.

    On CPUs, the ranks detect dead ranks and wait only for live ones. NCCL cannot, so on GPUs a
    store or exclude is required. If ranks on several hosts may die, it must be a store: NCCL
    refuses to shrink a communicator whose network has noticed that a rank died. NCCL before 2.28.7
    cannot revoke: ranks that wait for this one raise at their own time limit, so timeout must be
    longer than the limit.

    Args:
        comm: the communicator.
        timeout: seconds for all ranks to take part, and the same again for creating the new
            communicator. A rank that arrives later is excluded: its own call raises
            NcclRemoteError.
        store: a torch.distributed store shared by all ranks and used for this communicator alone
            (PrefixStore), through which the ranks agree. If a rank is missing, each waits for the
            full timeout.
        exclude: ranks known to be lost, which are not waited for. On GPUs without a store, all
            ranks must pass the same ranks.
        config: a Config; None inherits this communicator's.

    Returns:
        The new Communicator.

    Raises:
        TypeError, ValueError: an invalid argument, or this communicator is closed; on GPUs, neither
            store nor exclude is given.
        MissingFunctionError: without a store, the library is older than NCCL 2.27.
        NcclRemoteError: this rank was excluded.
        NcclTimeoutError: a rank took part in the agreement but not in creating the communicator.
            All ranks raise; the next call excludes it. Without a store, also: NCCL is older than
            2.28.7, so this communicator was aborted when it expired.
        NcclError: NCCL failed.
    """
    _C.check_outside_group("recover")
    limit = _checked_timeout(timeout)
    known = _checked_ranks(comm, exclude)
    nranks = comm.nranks
    rounds = _rounds.setdefault(comm, Rounds("pynccl/recover", nranks))
    if rounds is None:
        raise ValueError("communicator: it is closed; recover() has replaced it")
    if store is None and not known and not _C.can_agree(comm):
        raise ValueError(
            "recover: pass store or exclude: this library cannot detect the surviving ranks"
        )
    from_id = store is not None and not _C.can_agree(comm)
    if from_id and not comm.library.functions()["ncclCommRevoke"][1]:
        _begin_by_abort(comm)
    else:
        _C.begin_recovery(comm)
    agreed: list[int] | None
    for more in reversed(range(nranks)):
        if store is not None:
            agreed = rounds.agree(store, comm.rank, limit, known)
        else:
            agreed = _C.agree(comm, limit, known)
        lost = known if agreed is None else agreed
        unique_id = None
        if store is not None and from_id:
            path, first = f"{rounds.path}/{rounds.number}/id", rounds.members[0]
            create = partial(_new_id, comm)
            unique_id = share_id(
                store, path, comm.rank, first, create, timeout=limit, function="recover"
            )
        try:
            recovered = _C.create_recovered(comm, lost, limit, config, unique_id)
            break
        except NcclRemoteError:
            # Another rank has died in the meantime. All survivors raise this, and agree again.
            if agreed is None or not more:
                raise
    _rounds[comm] = None
    _rounds[recovered] = Rounds(f"{rounds.path}/{rounds.number}/next", nranks - len(lost))
    return recovered


def _begin_by_abort(comm: Communicator) -> None:
    """End the operations of a communicator that NCCL cannot revoke. An expiry has done so."""
    if not comm.expired and comm not in _aborted:
        _C.begin_recovery(comm)  # raises if it is closed
    _aborted.add(comm)
    with contextlib.suppress(ValueError):  # borrowed, or it shares its parent's resources
        comm.abort()


def _new_id(comm: Communicator) -> bytes:
    return bytes(_C.get_unique_id(comm.library))


def _checked_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise wrong_type("timeout", "seconds", timeout)
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout: {timeout} must be above 0 seconds, and finite")
    return float(timeout)


def _checked_ranks(comm: Communicator, exclude: Sequence[int]) -> list[int]:
    if not isinstance(exclude, Sequence) or isinstance(exclude, str):
        raise TypeError(f"exclude: expected a sequence of ranks, got {exclude!r}")
    for rank in (integer("exclude", one) for one in exclude):
        if not 0 <= rank < comm.nranks:
            raise ValueError(
                f"exclude: rank {rank} is out of range for a communicator of size {comm.nranks}"
            )
        if rank == comm.rank:
            raise ValueError(f"exclude: rank {rank} is this rank")
    return sorted(set(exclude))
