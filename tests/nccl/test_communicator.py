"""Proves the life of a communicator: its properties, split, finalize, close, revoke, abort, use as
a context manager and in non-blocking mode, and the behaviour of a deleted or closed one.
"""

from __future__ import annotations

import gc
import time
import warnings

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.nccl.test_life import check_works
from tests.support.blocking import Blocked
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@on_ranks(2, by="provider")
def test_properties(rank: Rank) -> None:
    comm = rank.comm
    assert (comm.rank, comm.nranks, comm.device) == (rank.rank, rank.nranks, rank.device or 0)
    assert not comm.closed
    assert comm.async_error() is None
    assert comm.ready
    comm.wait_ready(0)
    lib = comm.library
    assert lib.ncclCommCount(comm.handle) == rank.nranks
    assert lib.ncclCommUserRank(comm.handle) == rank.rank
    assert repr(comm) == (
        f"<pynccl.nccl.Communicator rank {rank.rank} of {rank.nranks} on {lib.path}>"
    )
    comm.close()
    comm.close()
    assert comm.closed
    assert repr(comm) == "<pynccl.nccl.Communicator closed>"
    assert (comm.rank, comm.nranks) == (rank.rank, rank.nranks)  # still known


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(4, by="provider threads")
def test_split(rank: Rank) -> None:
    comm, memory, stream = rank.comm, rank.memory, rank.stream()

    def total(of: nccl.Communicator) -> float:
        buffer = memory.put(np.full(3, float(rank.rank)))
        of.all_reduce(buffer, stream=stream)
        stream.synchronize()
        return float(memory.get(buffer)[0])

    even, odd = sum(range(0, rank.nranks, 2)), sum(range(1, rank.nranks, 2))
    with comm.split(rank.rank % 2) as half:
        assert half.rank == rank.rank // 2
        assert total(half) == (odd if rank.rank % 2 else even)
    with comm.split(7, -rank.rank) as reversed_:
        assert reversed_.rank == rank.nranks - 1 - rank.rank
        assert total(reversed_) == even + odd
    with comm.split(0, 5) as same_keys:
        assert same_keys.rank == rank.rank
    alone = comm.split(None if rank.rank == 0 else 1)
    if rank.rank == 0:
        assert alone is None
    else:
        assert alone.nranks == rank.nranks - 1
        assert total(alone) == even + odd
        alone.close()
    children = [comm]
    for _ in range(4):  # of children of children
        child = children[-1].split(0)
        children.append(child)
    assert total(children[-1]) == even + odd
    for child in children[:0:-1]:
        child.close()
    assert total(comm) == even + odd
    for bad in (-1, 2**31):
        with pytest.raises((ValueError, TypeError), match="color"):
            comm.split(bad)
    with comm.split(0) as child:  # outlives its parent
        comm.close()
        assert total(child) == even + odd


@on_ranks(2)
def test_finalize_waits_and_ends_it(rank: Rank) -> None:
    comm, stream, array = rank.communicator(), rank.stream(), np.ones(100_000)
    comm.all_reduce(array, stream=stream)
    comm.finalize()
    assert (array == rank.nranks).all()
    with pytest.raises(nccl.NcclInvalidUsageError, match="finalized"):
        comm.all_reduce(array)
    comm.close()


@on_ranks(2)
def test_close_waits_for_what_was_issued(rank: Rank) -> None:
    comm, stream, array = rank.communicator(), rank.stream(), np.ones(100_000)
    if rank.rank == 1:
        time.sleep(0.2)
    comm.all_reduce(array, stream=stream)
    comm.close()
    assert (array == rank.nranks).all()


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(3, by="provider threads")
def test_revoke_ends_blocked_calls(rank: Rank) -> None:
    """On a GPU the kernel is ended, and the call has returned."""
    comm, buffer = rank.comm, rank.memory.put(np.ones(1000, np.float32))
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 2:  # the others wait for it
        rank.wait_event("revoked", 0, 1)
        comm.revoke()
    else:
        blocked = Blocked(lambda: comm.all_reduce(buffer))
        blocked.wait()
        if rank.provider == "cuda":
            time.sleep(0.2)  # until the streams of both ranks are in the operation
        comm.revoke()
        blocked.end("" if rank.provider == "host" else None)
        rank.set_event("revoked")
    assert comm.async_error() is None
    with pytest.raises(nccl.NcclInvalidUsageError):
        comm.all_reduce(rank.memory.put(np.ones(1)))
    with pytest.raises(nccl.NcclInvalidUsageError):
        comm.send(rank.memory.put(np.ones(1)), (rank.rank + 1) % 3)
    with pytest.raises(nccl.NcclInvalidArgumentError):
        comm.revoke()
    with pytest.raises(nccl.NcclInvalidArgumentError):
        comm.finalize()
    assert comm.async_error() is None
    for _ in range(2):
        with comm.split(0, key=-rank.rank) as child:
            check_works(rank, child, [2, 1, 0])
    if rank.rank != 1:
        with comm.shrink([1]) as child:
            check_works(rank, child, [0, 2])


@on_ranks(2, ids=2)
def test_with_closes_and_an_exception_aborts(rank: Rank) -> None:
    with rank.communicator(0) as comm:
        comm.all_reduce(np.ones(3))
    assert comm.closed
    with pytest.raises(KeyError), rank.communicator(1) as comm:
        raise KeyError
    assert comm.closed  # aborted, without waiting for the others


@on_ranks(1, by="provider")
def test_a_closed_communicator_refuses_every_call(rank: Rank) -> None:
    comm = rank.communicator()
    array = rank.memory.put(np.ones(4))
    op = comm.pre_mul_sum(2.0, "float64")
    comm.close()
    for call in (
        lambda: comm.all_reduce(array),
        lambda: comm.send(array, 0),
        lambda: comm.split(0),
        comm.barrier,
        comm.finalize,
        comm.async_error,
        lambda: comm.handle,
        lambda: comm.pre_mul_sum(1.0, "float32"),
        lambda: comm.register(array),
        lambda: comm.register(array[::2]),
        lambda: comm.register(np.ones(4)),  # on GPUs: of the wrong memory
    ):
        with pytest.raises(ValueError, match="communicator: it is closed"):
            call()
    # The library stays loaded, so memory can still be allocated. Closing an operator of the
    # communicator is not an error.
    comm.mem_alloc(4).close()
    op.close()
    comm.abort()


@on_ranks(2, ids=2)
def test_a_group_that_creates_communicators_waits_for_late_ranks(rank: Rank) -> None:
    if rank.rank == 1:
        time.sleep(0.2)
    with nccl.group():
        comms = [rank.communicator(number) for number in range(2)]
    array = np.ones(3)
    for comm in comms:
        comm.all_reduce(array)
        comm.close()
    assert (array == 4).all()


@on_ranks(2)
def test_a_deleted_communicator_warns_and_is_aborted(rank: Rank) -> None:
    comm = rank.communicator()
    comm.all_reduce(np.ones(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del comm
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    assert "not closed" in str(caught[0].message)


@on_ranks(1, env={"PYNCCL_PROVIDER": "host"})
def test_the_provider_comes_from_device_or_environment(rank: Rank) -> None:
    with nccl.Communicator(1, nccl.get_unique_id("host"), 0, device="cpu") as comm:
        assert comm.library is raw.load("host")
    with nccl.Communicator(1, nccl.get_unique_id(), 0) as comm:
        assert comm.library is raw.load("host")


@on_ranks(2)
def test_errors_carry_the_name_of_the_communicator(rank: Rank) -> None:
    with rank.communicator(config=nccl.Config(comm_name="wheel")) as comm:
        with pytest.raises(nccl.NcclError):
            comm.all_reduce(np.ones(3 + rank.rank))
        assert "communicator wheel" in str(comm.async_error())
        comm.abort()


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
    with pytest.raises(ZeroDivisionError), parent.split(0) as child:
        raise ZeroDivisionError
    assert child.closed
    child = parent.split(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del parent  # is destroyed, which the child survives
        gc.collect()
    child.all_reduce(x)
    assert (rank.memory.get(x) == 16).all()
    child.close()


@on_ranks(2, by="provider")
def test_an_abort_ends_the_children_that_share(rank: Rank) -> None:
    parent = rank.communicator(config=nccl.Config(split_share=1))
    child = parent.split(0)
    x, stream = rank.memory.put(np.ones(4, np.float32)), rank.stream()
    child.all_reduce(x)
    rank.memory.get(x)
    if rank.rank == 0:
        child.all_reduce(x, stream=stream)
        parent.abort()
        with pytest.raises(nccl.NcclInvalidUsageError):
            stream.synchronize()
        rank.set_event("done")
    else:
        rank.wait_event("done", 0)
        parent.abort()
    assert child.closed
    child.abort()


def test_a_class_with_another_base() -> None:
    """Its instances contain several C++ objects, of which the communicator is the second."""

    class Both(nccl.Config, nccl.Communicator):
        def __init__(self) -> None:
            nccl.Config.__init__(self)
            nccl.Communicator.__init__(self, 1, nccl.get_unique_id("host"), 0, provider="host")

    with Both() as both:
        both.all_reduce(np.ones(1))
        assert len(both.flight_record()) == 1
