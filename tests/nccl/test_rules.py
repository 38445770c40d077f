"""Proves that pynccl refuses calls that NCCL does not check and executes wrongly: on suspended
communicators, on communicators that share resources, and between the steps of growing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl
from tests.support import gpu
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@on_ranks(2, by="provider")
def test_a_suspended_communicator_refuses_operations(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommSuspend")
    comm = rank.comm
    x = rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(x)
    with nccl.plan() as plan:
        comm.all_reduce(x)
    comm.suspend()
    calls: list[Callable[[], object]] = [
        lambda: comm.all_reduce(x),
        lambda: comm.send(x, 1 - rank.rank),
        lambda: comm.pre_mul_sum(2, "float32"),
        lambda: comm.register(x),
        plan,
    ]
    for call in calls:
        with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"):
            call()
    with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"), nccl.group():
        comm.all_reduce(x)
    assert comm.async_error() is None
    assert comm.ready
    assert comm.memory_stats().suspended
    assert comm.handle
    comm.resume()
    plan()
    assert (rank.memory.get(x) == 4).all()
    comm.suspend()  # the end of the test closes a suspended communicator


@on_ranks(2, by="provider")
def test_shared_memory_is_not_suspended(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommSuspend")
    with rank.communicator(config=nccl.Config(split_share=1)) as parent:
        with parent.split(0) as child:
            for comm in (parent, child):
                with pytest.raises(ValueError, match=r"split_share"):
                    comm.suspend()
        parent.suspend()
        parent.resume()


@on_ranks(2, by="provider")
def test_children_that_share_are_not_aborted_alone(rank: Rank) -> None:
    """NCCL has one abort flag for a parent and the children that share its resources."""
    parent = rank.communicator(config=nccl.Config(split_share=1))
    x = rank.memory.put(np.ones(4, np.float32))
    for _ in range(2):
        child = parent.split(0)
        child.all_reduce(x)
        with pytest.raises(ValueError, match="abort its parent"):
            child.abort()
        assert not child.closed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del child
    parent.all_reduce(x)
    assert (rank.memory.get(x) == 8).all()
    child = parent.split(0)
    parent.abort()
    child.abort()


@on_ranks(2, by="provider")
def test_growing_comes_first(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommGetUniqueId")
    with rank.communicator() as comm:
        comm.get_unique_id()
        for call in (lambda: comm.split(0), lambda: comm.shrink([1 - rank.rank])):
            with pytest.raises(ValueError, match=r"call grow\(\) before creating"):
                call()
        comm.abort()


@on_ranks(1, by="provider", fresh=True)
def test_grow_refuses_an_id_from_the_environment(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommGetUniqueId")
    comm = rank.comm
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_COMM_ID", "127.0.0.1:23456")
        with pytest.raises(ValueError, match="NCCL_COMM_ID"):
            comm.get_unique_id()


@on_ranks(2, by="provider", ids=2, fresh=True)
def test_a_failed_group_leaves_no_window(rank: Rank) -> None:
    """The operations of a group are dropped if its communicators cannot be created."""
    gpu.require(rank.provider, "ncclCommWindowRegister")
    comm = rank.comm
    buffer = comm.mem_alloc(4096)
    if rank.rank == 0:
        with pytest.raises(nccl.NcclTimeoutError), nccl.group():  # noqa: PT012
            comm.register_window(buffer)
            rank.communicator(1, config=nccl.Config(init_timeout=0.3))
        with nccl.group():
            pass
    comm.register_window(buffer).close()
