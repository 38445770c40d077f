"""Proves that windows provide the memory of peers as tensors and addresses, with their bounds, in
processes and threads; and that symmetric memory is allocated and registered in one call.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support import gpu
from tests.support.old_nccl import compile_nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_PAGE = 4096


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, True), (4, False)])
@on_ranks(by="threads")
def test_views(rank: Rank) -> None:
    comm, nranks = rank.comm, rank.nranks
    buffer = comm.mem_alloc(2 * _PAGE)
    own = np.from_dlpack(buffer)
    own[:] = rank.rank
    with comm.register_window(buffer) as window:
        comm.barrier()
        for peer in range(nranks):
            whole = window.peer(peer)
            assert (whole.shape, whole.dtype, whole.nbytes) == ((2 * _PAGE,), "uint8", 2 * _PAGE)
            assert (np.from_dlpack(whole) == peer).all()
            assert whole.ptr == window.peer_pointer(peer) == window.lsa_pointer(peer)
            tail = window.peer(peer, 2 * _PAGE - 48, dtype="int64")
            assert (tail.shape, tail.ptr) == ((6,), whole.ptr + 2 * _PAGE - 48)
            assert window.peer(peer, 16, (2, 3), "float32").shape == (2, 3)
            assert window.peer(peer, 2 * _PAGE - 1, 1).nbytes == 1
        comm.barrier()
        # Each rank writes one element in the memory of all ranks.
        for peer in range(nranks):
            np.from_dlpack(window.peer(peer, 8 * rank.rank, 1, "int64"))[0] = 1000 + rank.rank
        comm.barrier()
        assert list(own.view("int64")[:nranks]) == [1000 + i for i in range(nranks)]
        # Collectives accept it.
        first = comm.split(0 if rank.rank == 0 else None)
        if first is not None:
            first.all_reduce(window.peer(nranks - 1, 0, 1, "int64"))
            first.close()
        addresses = window.peer_pointers(32)
        assert (addresses.shape, addresses.dtype) == ((nranks,), "uint64")
        expected = [window.peer_pointer(peer, 32) for peer in range(nranks)]
        assert list(np.from_dlpack(addresses)) == expected
        assert window.multimem_pointer() is None
        comm.barrier()
    for use in (
        lambda: window.peer(0), lambda: window.peer_pointer(0), lambda: window.lsa_pointer(0),
        window.peer_pointers, window.multimem_pointer, lambda: whole.ptr,
        whole.__dlpack__,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="window: it is closed"):
            use()


def _check_bounds(window: nccl.Window, peer: int, size: int) -> None:
    assert window.peer(peer).nbytes == size
    assert window.peer_pointer(peer, size - 1) == window.peer(peer, size - 1).ptr
    view, pointer, lsa_pointer = window.peer, window.peer_pointer, window.lsa_pointer
    outside = f"offset: {size} is not inside"
    memory = f"bytes of the memory of rank {peer} are not a whole number of .* int64"
    wrong: list[tuple[Any, ...]] = [
        (f"{outside} the window of rank {peer}, which has {size} bytes", view, peer, size),
        (outside, pointer, peer, size),
        (outside, lsa_pointer, peer, size),
        (f"shape: its {size} bytes after offset 1 end after the window of", view, peer, 1, size),
        (f"shape: its {size + 4} bytes after", view, peer, 0, (size // 8 + 1,), "int64"),
        ("offset: 4 is not a multiple of the 8 bytes of int64", view, peer, 4, 1, "int64"),
        (f"dtype: the {size} {memory}", view, peer, 0, None, "int64"),
        (f"dtype: the {size - 8} {memory}", view, peer, 8, None, "int64"),
        ("shape: -1 is negative", view, peer, 0, -1),
        ("shape: the size in bytes does not fit", view, peer, 0, (1 << 62, 8), "int64"),
        ("offset: -1 does not fit", view, peer, -1),
    ]
    for message, call, *arguments in wrong:
        with pytest.raises(ValueError, match=message):
            call(*arguments)


@on_ranks(2)
def test_bounds(rank: Rank) -> None:
    """The memory of rank 1 is larger than that of rank 0."""
    comm = rank.comm
    sizes = [_PAGE + 4, 3 * _PAGE + 4]
    buffer = comm.mem_alloc(sizes[rank.rank])
    window = comm.register_window(buffer)
    for peer, size in enumerate(sizes):
        _check_bounds(window, peer, size)
    with pytest.raises(ValueError, match=f"offset: {_PAGE + 4} is not inside the window of rank 0"):
        window.peer_pointers(_PAGE + 4)
    for peer in (-1, 2):
        for name, use in (
            ("rank: rank", window.peer), ("rank: rank", window.peer_pointer),
            ("lsa_rank:", window.lsa_pointer),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=f"{name} {peer} is out of range"):
                use(peer)
    for call in (lambda: window.peer("0"), lambda: window.peer(0, shape="3")):
        with pytest.raises(TypeError, match=r"rank: |shape: "):
            call()
    with pytest.raises(ValueError, match="dtype: "):
        window.peer(0, dtype="no such type")
    window.close()


@pytest.mark.filterwarnings("ignore:a pynccl Window was not closed")
def test_a_view_keeps_the_window(comm: nccl.Communicator) -> None:
    buffer = comm.mem_alloc(_PAGE)
    alive = weakref.ref(buffer)
    view = np.from_dlpack(comm.register_window(buffer).peer(0))
    del buffer
    gc.collect()
    view[:] = 7
    assert (view == 7).all()
    assert alive() is not None
    del view
    gc.collect()
    comm.close()
    assert alive() is None


def test_closing_a_view(comm: nccl.Communicator) -> None:
    """It releases the window, which stays open."""
    buffer = comm.mem_alloc(_PAGE)
    alive = weakref.ref(buffer)
    with comm.register_window(buffer) as window:
        first, view = window.peer(0), window.peer(0)
        first.close()
        first.close()
        with pytest.raises(ValueError, match="buffer: it is closed"):
            _ = first.ptr
        np.from_dlpack(window.peer(0))[:] = 1
    del window, buffer
    gc.collect()
    assert alive() is not None
    view.close()
    gc.collect()
    assert alive() is None


@pytest.mark.filterwarnings("ignore:a pynccl Window was not closed")
@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, True), (4, False)])
@on_ranks(by="threads")
def test_symmetric_memory(rank: Rank) -> None:
    comm, nranks = rank.comm, rank.nranks
    with comm.symmetric_empty((nranks, 8), "int32") as buffer:
        assert isinstance(buffer, nccl.Buffer)
        assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((nranks, 8), "int32", 32 * nranks)
        assert (buffer.window.address, buffer.window.nbytes) == (buffer.ptr, buffer.nbytes)
        own = np.from_dlpack(buffer)
        own[:] = 1 + rank.rank
        comm.all_reduce(buffer)  # it is a buffer of a collective
        assert (own == nranks * (nranks + 1) // 2).all()
        comm.barrier()
        for peer in range(nranks):
            view = buffer.peer(peer)
            assert (view.shape, view.dtype) == (buffer.shape, "int32")
            np.from_dlpack(view)[rank.rank] = 10 * rank.rank + peer
        comm.barrier()
        assert (own == 10 * np.arange(nranks)[:, None] + rank.rank).all()
        comm.barrier()
        # The source and target of one-sided operations.
        before = (rank.rank - 1) % nranks
        comm.put_signal(own[-1], (rank.rank + 1) % nranks, buffer.window, 0)
        comm.wait_signal(before)
        assert (own[0] == 10 * (nranks - 1) + before).all()
        comm.barrier()
    buffer.close()
    assert buffer.window.closed
    for use in (lambda: buffer.ptr, lambda: np.from_dlpack(buffer), lambda: buffer.peer(0)):
        with pytest.raises(ValueError, match="it is closed"):
            use()
    assert comm.symmetric_empty(5).dtype == "float32"


@on_ranks(2, ids=2)
def test_mistakes_with_symmetric_memory(rank: Rank) -> None:
    comm = rank.comm
    closed = rank.communicator(1)
    closed.close()
    for message, call in {
        "shape: -1 is negative": lambda: comm.symmetric_empty(-1),
        "shape: it has no elements": lambda: comm.symmetric_empty((4, 0)),
        "dtype: ": lambda: comm.symmetric_empty(4, "no such type"),
        "communicator: it is closed": lambda: closed.symmetric_empty(4),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="shape: "):
        comm.symmetric_empty("4")
    with nccl.group(), pytest.raises(ValueError, match="communicator: it is closed"):
        closed.symmetric_empty(4)
    with contextlib.suppress(KeyError), nccl.group():
        pending = comm.symmetric_empty(4)
        for use in (lambda: pending.peer(0), pending.close):
            with pytest.raises(ValueError, match="still being registered"):
                use()
        raise KeyError
    assert pending.window.closed
    pending.close()
    comm.symmetric_empty(4).close()


def test_an_nccl_without_windows(tmp_path: Path) -> None:
    path = compile_nccl(tmp_path, 22605, with_communicators=True)
    with nccl.Communicator(1, bytes(128), 0, provider=path) as comm:
        for call in (
            lambda: comm.symmetric_empty(4),
            lambda: comm.register_window(_PAGE, count=_PAGE, dtype="uint8"),
        ):
            text = r"ncclCommWindowRegister needs NCCL 2\.27\.\d+; the loaded"
            with pytest.raises(nccl.MissingFunctionError, match=text):
                call()


def test_deleted_memory_warns(comm: nccl.Communicator) -> None:
    with pytest.warns(ResourceWarning, match="Window was not closed"):
        comm.symmetric_empty(4)


@on_ranks(2, by="provider")
def test_of_both_providers(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclGetPeerDevicePointer", "ncclTeamLsa")
    comm, nranks = rank.comm, rank.nranks
    with comm.symmetric_empty(4, "int64") as buffer:
        lsa = comm.team_lsa()
        for peer in range(nranks):
            lsa_rank = comm.rank_to_lsa(comm.team_world(), peer)
            pointer = buffer.window.peer_pointer(peer, 8)
            assert (pointer is None) == (lsa_rank is None)
            if lsa_rank is None:
                with pytest.raises(ValueError, match="rank: this rank cannot load from"):
                    buffer.peer(peer)
            else:
                assert pointer == buffer.window.lsa_pointer(lsa_rank, 8)
                view = buffer.peer(peer)
                assert view.ptr + 8 == pointer
                assert (view.device, view.__dlpack_device__()) == (
                    buffer.device,
                    buffer.__dlpack_device__(),
                )
        assert lsa.nranks <= nranks
        assert buffer.window.peer_pointers().nbytes == 8 * nranks
