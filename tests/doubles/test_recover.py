"""Communicator.recover() through a store, on the double of NCCL releases that cannot create the
communicator of the surviving ranks from the old one.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.doubles import library
from tests.support.blocking import wait_until
from tests.support.launcher import Launcher
from tests.support.rank import Rank, wait_for


def _recovers_after_an_error(rank: Rank, folder: Path) -> list[float]:
    comm = rank.communicator(config=nccl.Config(split_share=1))
    x = rank.memory.put(np.ones(4, np.float32))
    stream = rank.stream()
    comm.all_reduce(x, stream=stream)
    stream.synchronize()
    (folder / str(rank.rank)).touch()
    if rank.rank == 2:
        for survivor in ("0", "1"):
            wait_for(str(folder / survivor))
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(x, stream=stream)
    wait_until(lambda: comm.async_error() is not None)
    text = r"ncclCommShrink failed on rank \d.*use recover\(store=...\)"
    with pytest.raises(nccl.NcclRemoteError, match=text):
        comm.shrink([2], abort=True)
    with comm.recover(2, store=rank.store()) as smaller:
        y = rank.memory.put(np.ones(4, np.float32))
        smaller.all_reduce(y)
        values: list[float] = rank.memory.get(y).tolist()
        with smaller.split(0) as child, pytest.raises(ValueError, match="split_share"):
            child.abort()  # so it has the configuration
    return values


def test_the_ranks_recover_after_the_network_noticed_a_death(
    launch: Launcher, tmp_path: Path
) -> None:
    """NCCL then refuses to shrink or split the communicator, even after a revocation."""
    env = {"NCCL_DOUBLE_DEAD_PEERS_SPIN": "0", **library.of_version("2.28")}
    *survivors, _ = launch.outcomes(3, _recovers_after_an_error, tmp_path, provider="cuda", env=env)
    for outcome in survivors:
        assert outcome.ok, outcome.trace
        assert outcome.value == [2.0] * 4


class _Unreachable:
    """A store whose host has died."""

    def set(self, key: str, value: str) -> None:
        raise ConnectionError("the store is gone")


def _recovers_without_revocation(rank: Rank, expires: bool) -> list[list[float]]:
    comm = rank.communicator(1)
    x = rank.memory.put(np.ones(4, np.float32))
    stream = rank.stream()
    comm.all_reduce(x, stream=stream)
    stream.synchronize()
    rank.set_event("connected")
    rank.wait_event("connected", 0, 1, 2)
    if rank.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.timeout = 0.5 if expires else 60
    comm.all_reduce(x, stream=stream)
    if expires:
        with pytest.raises(nccl.NcclTimeoutError, match="did not complete within"):
            stream.synchronize()
        assert comm.expired
    comm.timeout = 60
    rank.set_event("recovers")
    rank.wait_event("recovers", 0, 1)
    store, unreachable, values = rank.store(), _Unreachable(), []
    for _ in range(2):  # the second time none is lost
        with pytest.raises(ConnectionError):
            comm.recover(2, store=unreachable)  # type: ignore[arg-type]
        old, comm = comm, comm.recover(2, store=store)
        assert old.closed
        assert comm.timeout == 60
        with pytest.raises(ValueError, match=r"recover\(\) has replaced it"):
            old.recover(2, store=store)
        y = rank.memory.put(np.ones(4, np.float32))
        comm.all_reduce(y)
        values.append(rank.memory.get(y).tolist())
    comm.close()
    with pytest.raises(ValueError, match="it is closed"):
        comm.recover(2, store=store)
    return values


@pytest.mark.parametrize(("version", "expires"), [("2.18", True), ("2.24", False)])
def test_the_ranks_recover_through_a_store_without_revocation(
    launch: Launcher, version: str, expires: bool
) -> None:
    """NCCL before 2.28.7 cannot revoke a communicator, and an expiry aborts it."""
    env = library.of_version(version)
    *survivors, _ = launch.outcomes(
        3, _recovers_without_revocation, expires, provider="cuda", env=env, ids=2
    )
    for outcome in survivors:
        assert outcome.ok, outcome.trace
        assert outcome.value == [[2.0] * 4] * 2


def _recovers_without_an_abort(rank: Rank) -> None:
    from torch.distributed import PrefixStore

    parent = rank.communicator(config=nccl.Config(split_share=1))
    shared, borrowed = parent.split(0), nccl.Communicator.borrow(parent)
    for comm, store in ((shared, "shared"), (borrowed, "borrowed")):
        with comm.recover(5, store=PrefixStore(store, rank.store())) as recovered:
            assert comm.closed
            x = rank.memory.put(np.ones(4, np.float32))
            recovered.all_reduce(x)
            assert rank.memory.get(x).tolist() == [2.0] * 4
    parent.all_reduce(x)
    assert rank.memory.get(x).tolist() == [4.0] * 4
    parent.close()


def test_a_recovery_without_revocation_leaves_the_parent_and_the_owner(launch: Launcher) -> None:
    """A communicator that shares its parent's resources, or is borrowed, cannot be aborted."""
    env = library.of_version("2.24")
    launch(2, _recovers_without_an_abort, provider="cuda", env=env)
