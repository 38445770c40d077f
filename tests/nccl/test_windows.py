"""Proves that windows are registered on all ranks or on none, in processes, threads and groups;
that collectives give the same bits in windows and in other memory; that windows provide the memory
of peers as tensors and addresses; and that wrong arguments leave the communicator usable.
tests/hostnccl/test_interactions.py tests for leaks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support import gpu, holdings
from tests.support.old_nccl import compile_nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_PAGE = 4096
_MAP_FIXED = 0x10


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, True), (3, False)])
@on_ranks(by="provider threads")
def test_lifecycle(rank: Rank) -> None:
    comm = rank.comm
    buffer = comm.mem_alloc((4, _PAGE))
    with comm.register_window(buffer) as window:
        assert (window.address, window.nbytes) == (buffer.ptr, 4 * _PAGE)
        assert window.user_pointer() == buffer.ptr
        assert window.handle > 0
        assert not window.closed
        assert repr(window) == f"<pynccl.nccl.Window of {4 * _PAGE} bytes>"
    window.close()
    assert window.closed
    assert repr(window) == "<pynccl.nccl.Window closed>"
    for use in (lambda: window.handle, window.user_pointer):
        with pytest.raises(ValueError, match="window: it is closed"):
            use()
    # Sizes may differ, a window may be a part of an allocation, and several may be open.
    bytes_of_rank = (rank.rank + 1) * 2048
    part = comm.register_window(
        buffer.ptr + _PAGE, symmetric=False, count=bytes_of_rank, dtype="uint8"
    )
    whole = comm.register_window(buffer, strict_ordering=True)
    assert (part.nbytes, whole.nbytes) == (bytes_of_rank, 4 * _PAGE)
    with pytest.raises(ValueError, match="begins at the same address"):
        comm.register_window(buffer)
    whole.close()
    part.close()
    comm.register_window(buffer).close()
    with comm.split(0) as child:
        left_open = child.register_window(buffer)
    assert left_open.closed
    left_open.close()


@on_ranks(2, by="provider")
def test_ranks_must_have_the_same_windows(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommWindowRegister")
    comm = rank.comm
    buffers = [comm.mem_alloc(2 * _PAGE) for _ in range(3)]
    first, second = comm.register_window(buffers[0]), comm.register_window(buffers[1])
    (first if rank.rank == 0 else second).close()
    with pytest.raises(ValueError, match="rank 0 and rank 1 have different windows open"):
        comm.register_window(buffers[2])
    (second if rank.rank == 0 else first).close()
    start = buffers[2].ptr + rank.rank * _PAGE
    with pytest.raises(ValueError, match=r"begins 0 bytes .* on rank 0, and 4096 bytes on rank 1"):
        comm.register_window(start, count=_PAGE, dtype="uint8")
    comm.register_window(buffers[2]).close()


@pytest.mark.gpu
@on_ranks(1, provider="cuda")
def test_host_memory_is_refused_for_a_gpu(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommWindowRegister")
    with pytest.raises(ValueError, match="buffer: is on cpu"):
        rank.comm.register_window(np.zeros(2 * _PAGE, np.uint8))


def test_a_deleted_window_stays_registered(comm: nccl.Communicator) -> None:
    """Until its communicator is closed: the ranks would close their windows in different orders."""
    buffer = comm.mem_alloc(_PAGE)
    released = weakref.ref(buffer)
    with pytest.warns(ResourceWarning, match="Window was not closed"):
        comm.register_window(buffer)
    with pytest.raises(ValueError, match="begins at the same address"):
        comm.register_window(buffer)
    del buffer
    gc.collect()
    assert released() is not None
    comm.close()
    assert released() is None


def test_the_warning_of_a_deleted_window_as_an_error(
    comm: nccl.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destructor cannot raise it."""
    reports: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))
    buffer = comm.mem_alloc(_PAGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comm.register_window(buffer)
    assert [type(report) for report in reports] == [ResourceWarning]


def test_several_ranks_in_one_thread() -> None:
    comms = nccl.Communicator.init_all(3, provider="host")
    buffers = [comm.mem_alloc(_PAGE) for comm in comms]
    with nccl.group():
        windows = [comm.register_window(b) for comm, b in zip(comms, buffers, strict=True)]
        with pytest.raises(ValueError, match="still being registered; leave the group first"):
            _ = windows[0].handle
        with pytest.raises(ValueError, match="still being registered"):
            windows[0].close()
    assert all(window.handle for window in windows)
    other = comms[0].mem_alloc(_PAGE)
    for _ in range(2):
        with contextlib.suppress(KeyError), nccl.group():
            window = comms[0].register_window(other)
            raise KeyError
        assert window.closed
    with nccl.plan() as plan, pytest.raises(RuntimeError, match="plan: a window"):
        comms[0].register_window(other)
    assert len(plan) == 0
    for comm in comms:
        comm.close()


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(2, by="threads", ids=2)
def test_mistakes_are_refused_on_all_ranks(rank: Rank) -> None:
    comm = rank.comm
    buffer = comm.mem_alloc(2 * _PAGE)
    closed = rank.communicator(1)
    closed.close()
    unaligned = {"buffer": buffer.ptr + 8, "count": 8, "dtype": "uint8"}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("buffer: .*None", {"buffer": None}),
        ("buffer: has no elements", {"buffer": comm.mem_alloc(0)}),
        ("buffer: the address must be a multiple of 4096", unaligned),
        (
            "symmetric: it cannot be combined",
            {"buffer": buffer, "symmetric": True, "gin_only": True},
        ),
    ]
    for message, arguments in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            comm.register_window(**arguments)
    for context in (contextlib.nullcontext(), nccl.group()):
        with context, pytest.raises(ValueError, match="communicator: it is closed"):
            closed.register_window(buffer)
    # One rank's mistake is raised on all of them, and their communicator stays usable.
    ordinary = np.zeros(3 * _PAGE, np.uint8)
    aligned = ordinary[-ordinary.ctypes.data % _PAGE :][:_PAGE]
    wrong_on_one: list[tuple[str, dict[str, Any]]] = [
        ("is not memory that NCCL can share", {"buffer": aligned}),
        ("has no elements", {"buffer": comm.mem_alloc(0)}),
        ("must be a multiple of 4096", unaligned),
    ]
    for text, arguments in wrong_on_one:
        with pytest.raises(ValueError, match=text) as caught:
            comm.register_window(**arguments if rank.rank == 1 else {"buffer": buffer})
        assert (rank.rank == 1) == ("of rank 1: " not in str(caught.value))
    text = "is not within one allocation of ncclMemAlloc"
    with pytest.raises(nccl.NcclInvalidArgumentError, match=text):
        comm.register_window(aligned)
    with pytest.raises(nccl.NcclInvalidArgumentError, match=text):
        comm.register_window(buffer.ptr, count=3 * _PAGE, dtype="uint8")
    comm.register_window(buffer, gin_only=True).close()
    total = np.ones(1)
    comm.all_reduce(total)
    assert total[0] == rank.nranks


class _Data:
    """The same values in a window and in ordinary memory."""

    def __init__(self, comm: nccl.Communicator, count: int, seed: int) -> None:
        self.buffer = comm.mem_alloc(count, "float32")
        self.window = comm.register_window(self.buffer)
        self.inside = np.from_dlpack(self.buffer)
        self.outside = np.zeros(count, np.float32)
        self.values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)

    def fill(self) -> None:
        self.inside[:] = self.outside[:] = self.values


_WINDOW_BYTES = {"HOSTNCCL_WINDOW_BYTES": "50000"}


@pytest.mark.parametrize(
    ("nranks", "threads", "env"),
    [
        (2, False, {**_WINDOW_BYTES, "HOSTNCCL_CMA": "0"}),
        (3, False, _WINDOW_BYTES),
        (3, False, {**_WINDOW_BYTES, "HOSTNCCL_DIRECT_BYTES": "100000"}),
        (3, True, {}),
    ],
    ids=str,
)
@on_ranks(by="threads env")
def test_collectives_give_the_same_bits(rank: Rank) -> None:
    """Each collective runs once outside of windows, then with some of the ranks inside of them."""
    comm, nranks = rank.comm, rank.nranks
    block = 61_003
    own, other = (_Data(comm, block * nranks, seed) for seed in (rank.rank, 1000 + rank.rank))
    choose = np.random.default_rng(7)  # the same on all ranks
    calls: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
        "all_reduce": lambda a, b: comm.all_reduce(a, out=b),
        "all_reduce in place": lambda a, _: comm.all_reduce(a),
        "broadcast": lambda a, b: comm.broadcast(a, nranks - 1, out=b),
        "reduce": lambda a, b: comm.reduce(a, nranks - 1, nccl.MAX, out=b),
        "all_gather": lambda a, b: comm.all_gather(a[:block], out=b),
        "reduce_scatter": lambda a, b: comm.reduce_scatter(a, nccl.AVG, out=b[:block]),
        "all_to_all": lambda a, b: comm.all_to_all(a, out=b),
    }
    for turn in range(4):
        for name, call in calls.items():
            places = choose.integers(0, 3, nranks)  # 0: in windows, 1: not, 2: the result is not
            if turn % 2 == 0:
                places[:] = 0
            own.fill()
            other.fill()
            call(own.outside, other.outside)
            wanted = own.outside.copy(), other.outside.copy()
            own.fill()
            other.fill()
            source = own.outside if places[rank.rank] == 1 else own.inside
            target = other.inside if places[rank.rank] == 0 else other.outside
            call(source, target)
            assert np.array_equal(source, wanted[0]), (name, places)
            assert np.array_equal(target, wanted[1]), (name, places)


@pytest.mark.parametrize("env", [{}, {"HOSTNCCL_CMA": "0"}], ids=str)
@on_ranks(3, by="env")
def test_a_window_closed_by_some_ranks(rank: Rank) -> None:
    """The data takes another path."""
    data = _Data(rank.comm, 500_000, rank.rank)
    for open_ranks in (3, 2, 1, 0):
        if rank.rank == open_ranks:
            data.window.close()
        data.fill()
        rank.comm.all_reduce(data.outside)
        rank.comm.all_reduce(data.inside)
        assert np.array_equal(data.inside, data.outside)


@pytest.mark.parametrize("message", [False, True])
@on_ranks(2, env={"HOSTNCCL_DIRECT_BYTES": "0", "HOSTNCCL_DIRECT_MESSAGE_BYTES": "0"})
def test_memory_at_the_address_of_a_closed_window(rank: Rank, message: bool) -> None:
    """It is read, even by a rank that has not closed the window yet."""
    comm, size = rank.comm, 64 * _PAGE
    buffer = comm.mem_alloc(size)
    window = comm.register_window(buffer)
    own = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(buffer.ptr))
    if rank.rank == 1:
        window.close()
        # As if the buffer had been freed and the kernel had used its address again.
        mmap = ctypes.CDLL(None).mmap
        mmap.restype = ctypes.c_void_p
        mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        flags = MAP_PRIVATE | MAP_ANONYMOUS | _MAP_FIXED
        assert mmap(buffer.ptr, size, PROT_READ | PROT_WRITE, flags, -1, 0) == buffer.ptr
        own[:] = 7
    received = np.zeros((2, size), np.uint8)
    if not message:
        comm.all_gather(own, out=received)
    elif rank.rank == 1:
        comm.send(own, 0)
    else:
        comm.recv(received[1], 1)
    assert rank.rank == 1 or (received[1] == 7).all()


def _staged() -> int:
    """The touched part of the memory that the ranks share for staging."""
    return holdings.resident_in("memfd:hostnccl ")


@on_ranks(2, env={"HOSTNCCL_CMA": "0"})
def test_large_data_in_windows_is_not_staged(rank: Rank) -> None:
    """Ranks cannot read other processes, so only the windows' mappings are left."""
    data = _Data(rank.comm, 1_000_000, rank.rank)
    before = _staged()
    data.fill()
    rank.comm.all_reduce(data.inside)
    rank.comm.broadcast(data.inside, 1)
    assert _staged() - before < 50_000
    rank.comm.all_reduce(data.outside)
    assert _staged() - before > 500_000


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


# The memory of peers, and symmetric memory


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


@on_ranks(2, by="provider")
def test_memory_of_peers_of_both_providers(rank: Rank) -> None:
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
