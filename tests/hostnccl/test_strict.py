"""Proves that hostnccl is as strict as NCCL with HOSTNCCL_STRICT=1: behavior that NCCL leaves
undefined is an error, and one-sided operations run in NCCL's order. The same calls succeed without
it. The tests call nccl.h directly, because pynccl itself prevents most of these mistakes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support.commands import run_python
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_PAGE = 4096
_BYTE = raw.ncclUint8

_MODES = pytest.mark.parametrize("strict", [True, False], ids=["strict", "kind"])


@contextmanager
def _refused(strict: bool, message: str) -> Iterator[None]:
    if strict:
        with pytest.raises(nccl.NcclError, match=message):
            yield
    else:
        yield


@contextmanager
def _group(lib: raw.Library) -> Iterator[None]:
    lib.ncclGroupStart()
    yield
    lib.ncclGroupEnd()


def _wait(lib: raw.Library, comm: int, peer: int, stream: int = 0, context: int = 0) -> None:
    signals = [raw.ncclWaitSignalDesc_t(opCnt=1, peer=peer, ctx=context)]
    lib.ncclWaitSignal(1, signals, comm, stream)


def _window(rank: Rank) -> tuple[nccl.Buffer, nccl.Window]:
    buffer = rank.comm.mem_alloc(2 * _PAGE)
    return buffer, rank.comm.register_window(buffer)


def _check_blocks(rank: Rank, stream: nccl.Stream, blocks: bool) -> None:
    """Whether the work on the stream waits forever, on both ranks."""
    other = rank.communicator(1)
    event = rank.event()
    event.record(stream)
    until = time.monotonic() + (0.3 if blocks else 20)
    while not event.query() and time.monotonic() < until:
        time.sleep(0.001)
    assert event.query() != blocks
    other.all_reduce(np.zeros(1))  # no rank aborts before both have checked
    if blocks:
        rank.comm.abort()


def _wait_first(rank: Rank, strict: bool) -> None:
    lib, comm, stream = raw.load("host"), rank.comm.handle, rank.stream()
    buffer, window = _window(rank)
    with _group(lib):
        _wait(lib, comm, 1 - rank.rank, stream.handle)
        lib.ncclPutSignal(
            buffer.ptr, 8, _BYTE, 1 - rank.rank, window.handle, _PAGE, 0, 0, 0, comm, stream.handle
        )
    _check_blocks(rank, stream, strict)


def _one_sided_first(rank: Rank, strict: bool) -> None:
    """In a group NCCL runs the one-sided operations before all others."""
    lib, comm, stream = raw.load("host"), rank.comm.handle, rank.stream()
    _window(rank)
    x = np.ones(1, np.float32)
    reduce = (x.ctypes.data, x.ctypes.data, 1, raw.ncclFloat32, raw.ncclSum, comm, stream.handle)
    if rank.rank == 0:
        with _group(lib):
            lib.ncclAllReduce(*reduce)
            _wait(lib, comm, 1, stream.handle)
    else:
        lib.ncclAllReduce(*reduce)
        lib.ncclSignal(0, 0, 0, 0, comm, stream.handle)
    _check_blocks(rank, stream, strict)


def _context_by_context(rank: Rank, strict: bool) -> None:
    rank._comm = rank.communicator(config=nccl.Config(num_rma_ctx=2))
    lib, comm, stream = raw.load("host"), rank.comm.handle, rank.stream()
    _window(rank)
    if rank.rank == 0:
        with _group(lib):
            lib.ncclSignal(1, 0, 1, 0, comm, stream.handle)
            _wait(lib, comm, 1, stream.handle)
    else:
        _wait(lib, comm, 0, stream.handle, 1)
        lib.ncclSignal(0, 0, 0, 0, comm, stream.handle)
    _check_blocks(rank, stream, strict)


def _id_used_again(rank: Rank, strict: bool) -> None:
    """In NCCL the second creation never returns."""
    lib, unique_id = raw.load("host"), rank.unique_ids[1]
    rank.comm.all_reduce(np.zeros(1))
    lib.ncclCommDestroy(lib.ncclCommInitRank(2, unique_id, rank.rank))
    rank.comm.all_reduce(np.zeros(1))
    with _refused(strict, "commId: rank . has already created a communicator with it"):
        lib.ncclCommDestroy(lib.ncclCommInitRank(2, unique_id, rank.rank))


def _captured(rank: Rank, call: Callable[[nccl.Stream], None]) -> tuple[nccl.Graph, nccl.Stream]:
    stream = rank.stream()
    with nccl.capture(stream) as graph:
        call(stream)
    return graph, stream


def _captured_and_not(rank: Rank, strict: bool) -> None:
    """A captured signal does not end a wait that is not captured."""
    _window(rank)
    peer = 1 - rank.rank
    graph, stream = _captured(rank, lambda stream: rank.comm.signal(peer, stream=stream))
    graph.launch(stream)
    rank.comm.wait_signal(peer, stream=stream)
    _check_blocks(rank, stream, strict)


def _two_under_way(rank: Rank, strict: bool) -> None:
    """A graph has at most one signal in flight per peer."""
    _window(rank)
    peer = 1 - rank.rank

    def call(stream: nccl.Stream) -> None:
        rank.comm.signal(peer, stream=stream)
        rank.comm.signal(peer, stream=stream)
        rank.comm.wait_signal(peer, 2, stream=stream)

    graph, stream = _captured(rank, call)
    graph.launch(stream)
    _check_blocks(rank, stream, strict)


def _graphs_of_both(rank: Rank, strict: bool) -> None:
    """Correct in NCCL: a put and its wait are captured, others are not."""
    comm, peer = rank.comm, 1 - rank.rank
    buffer, window = _window(rank)
    data = np.from_dlpack(buffer)

    def call(stream: nccl.Stream) -> None:
        for _ in range(3):
            comm.put_signal(data[:8], peer, window, _PAGE, stream=stream)
            comm.wait_signal(peer, stream=stream)

    graph, stream = _captured(rank, call)
    for turn in range(1, 20):
        data[:8] = 10 * rank.rank + turn
        graph.launch(stream)
        comm.signal(peer, stream=stream)
        comm.wait_signal(peer, stream=stream)
        stream.synchronize()
        assert (data[_PAGE : _PAGE + 8] == 10 * peer + turn).all()
        comm.all_reduce(np.zeros(1))
    assert not data[_PAGE + 8 :].any()


def _registrations(rank: Rank, strict: bool) -> None:
    lib, comm = raw.load("host"), rank.comm.handle
    memory = [lib.ncclMemAlloc(4 * _PAGE) for _ in range(3)]

    def register(address: int, flags: int = raw.NCCL_WIN_COLL_SYMMETRIC) -> int:
        return lib.ncclCommWindowRegister(comm, address, _PAGE, flags)

    with _refused(strict, "bytes after the beginning of its allocation"):
        register(memory[0] + rank.rank * _PAGE)
    first, second = register(memory[1]), register(memory[2])
    lib.ncclCommWindowDeregister(comm, register(memory[1]))  # two windows at one address
    lib.ncclCommWindowDeregister(comm, first if rank.rank == 0 else second)
    with _refused(strict, "have different windows open"):
        register(memory[0])
    lib.ncclCommWindowDeregister(comm, second if rank.rank == 0 else first)
    # The order of two that are closed between the same registrations makes no difference.
    lib.ncclCommWindowDeregister(comm, register(memory[0] + 2 * _PAGE))


def _deregistered_under_a_put(rank: Rank, strict: bool) -> None:
    lib, comm, stream = raw.load("host"), rank.comm.handle, rank.stream()
    memory = lib.ncclMemAlloc(2 * _PAGE)
    symmetric = raw.NCCL_WIN_COLL_SYMMETRIC
    window = lib.ncclCommWindowRegister(comm, memory, 2 * _PAGE, symmetric)
    event, tried = rank.event(), threading.Event()
    if rank.rank == 1:
        stream.launch(lambda: tried.wait(20 if strict else 0.5))
        lib.ncclPutSignal(memory, 8, _BYTE, 0, window, _PAGE, 0, 0, 0, comm, stream.handle)
        event.record(stream)
        with _refused(strict, "a put into it is not complete"):
            lib.ncclCommWindowDeregister(comm, window)
        tried.set()
        stream.synchronize()
    else:
        _wait(lib, comm, 1)
    if strict or rank.rank == 0:
        lib.ncclCommWindowDeregister(comm, window)
    lib.ncclMemFree(memory)


def _arguments(rank: Rank, strict: bool) -> None:
    lib, comm, peer = raw.load("host"), rank.comm.handle, 1 - rank.rank
    memory = lib.ncclMemAlloc(2 * _PAGE)
    plain = lib.ncclCommWindowRegister(comm, memory, _PAGE, 0)
    with _refused(strict, "before a symmetric window was registered"):
        lib.ncclSignal(peer, 0, 0, 0, comm, 0)
        _wait(lib, comm, peer)
    symmetric = raw.NCCL_WIN_COLL_SYMMETRIC
    window = lib.ncclCommWindowRegister(comm, memory + _PAGE, _PAGE, symmetric)
    for source, count, message in (
        (memory + _PAGE, 0, "count=0"),
        (memory, 8, "is not within a symmetric window"),
    ):
        with _refused(strict, message):
            lib.ncclPutSignal(source, count, _BYTE, peer, plain, 0, 0, 0, 0, comm, 0)
            _wait(lib, comm, peer)
    with _refused(strict, "nDesc=0"):
        lib.ncclWaitSignal(0, [], comm, 0)
    lib.ncclPutSignal(memory + _PAGE, 8, _BYTE, peer, plain, 0, 0, 0, 0, comm, 0)
    _wait(lib, comm, peer)
    assert window != plain


def _operators(rank: Rank, strict: bool) -> None:
    """NCCL reuses the handle of a destroyed operator for the next one."""
    comm = rank.comm
    first, second = (comm.pre_mul_sum(factor, "float32") for factor in (2.0, 3.0))
    handle = first.value
    first.close()
    third, fourth = (comm.pre_mul_sum(factor, "float32") for factor in (5.0, 7.0))
    assert (third.value == handle) == strict
    for op, factor in ((second, 3), (third, 5), (fourth, 7)):
        array = np.ones(4, np.float32)
        comm.all_reduce(array, op)
        assert array.tolist() == [2 * factor] * 4


def _simulations(rank: Rank, strict: bool) -> None:
    lib = raw.load("host")
    x = np.ones(2, np.float32)
    address = x.ctypes.data

    def simulate(comm: nccl.Communicator, call: Callable[[int], None]) -> None:
        lib.ncclGroupStart()
        call(comm.handle)
        lib.ncclGroupSimulateEnd(raw.ncclSimInfo_t())

    def send(comm: int) -> None:
        lib.ncclSend(address, 2, raw.ncclFloat32, 1 - rank.rank, comm, 0)

    def gather(comm: int) -> None:
        lib.ncclGather(address, address, 1, raw.ncclFloat32, 0, comm, 0)

    def all_reduce(comm: int) -> None:
        lib.ncclAllReduce(address, address, 2, raw.ncclFloat32, raw.ncclSum, comm, 0)

    for call, name in ((send, "ncclSend"), (gather, "ncclGather")):
        with _refused(strict, f"{name}: NCCL retains its messages"):
            simulate(rank.comm, call)
    simulate(rank.comm, all_reduce)
    other = rank.communicator(1, config=nccl.Config(blocking=0))
    other.wait_ready(20)
    with _refused(strict, "with a non-blocking communicator"):
        simulate(other, all_reduce)
    rank.comm.all_reduce(x)
    assert (x == 2).all()


def _shared(rank: Rank, strict: bool) -> None:
    lib = raw.load("host")
    parent = rank.communicator(config=nccl.Config(split_share=1))
    child = lib.ncclCommSplit(parent.handle, 0, rank.rank, None)
    for comm in (parent.handle, child):
        with _refused(strict, "shares its resources"):
            lib.ncclCommSuspend(comm, raw.NCCL_SUSPEND_MEM)
            lib.ncclCommResume(comm)
    lib.ncclCommDestroy(child)
    lib.ncclCommSuspend(parent.handle, raw.NCCL_SUSPEND_MEM)
    lib.ncclCommResume(parent.handle)
    child = lib.ncclCommSplit(parent.handle, 0, rank.rank, None)
    parent.all_reduce(np.ones(1))
    lib.ncclCommAbort(child)
    with _refused(strict, "shares the resources of comm was aborted|was aborted"):
        parent.all_reduce(np.ones(1))
    if strict:
        parent.abort()
    parent = rank.communicator(1, config=nccl.Config(split_share=1))
    child = lib.ncclCommSplit(parent.handle, 0, rank.rank, None)
    x = np.ones(1)
    address = x.ctypes.data
    lib.ncclCommAbort(parent.handle)
    with _refused(strict, "the communicator that comm shares its resources with was aborted"):
        lib.ncclAllReduce(address, address, 1, raw.ncclFloat64, raw.ncclSum, child, 0)


def _deriving(rank: Rank, strict: bool) -> None:
    """In NCCL a non-blocking parent is in progress until its child is ready."""
    comm = rank.communicator(1, config=nccl.Config(blocking=False))
    comm.wait_ready(20)
    for number, derive in enumerate([lambda: comm.split(0), lambda: comm.shrink([2])]):
        if number == rank.rank - 1 == 1:
            break  # it is excluded
        rank.wait_event(f"derived {number}", *range(rank.rank))  # no child is ready before
        child = derive()
        assert child is not None
        if rank.rank == 0:
            assert comm.ready != strict, number
        rank.set_event(f"derived {number}")
        child.wait_ready(20)
        array = np.ones(1)
        child.all_reduce(array)
        child.wait_ready(20)
        assert array[0] == 3 - number


@_MODES
def test_a_derivation_makes_its_parent_busy(launch: Launcher, strict: bool) -> None:
    launch(3, _deriving, strict, env={"HOSTNCCL_STRICT": str(int(strict))}, ids=2, timeout=30)


def _failing_to_derive(rank: Rank, strict: bool, revoked: bool) -> None:
    """In NCCL the error is that of the non-blocking parent, which a revocation clears."""
    comm = rank.communicator(1, config=nccl.Config(blocking=False))
    comm.wait_ready(20)
    if rank.rank == 0:
        if revoked:
            comm.revoke()
            comm.wait_ready(20)
        child = comm.shrink([2])
        rank.set_event("derives")
        with pytest.raises(nccl.NcclRemoteError, match="rank 1"):
            child.wait_ready(20)
        reports = strict and not revoked
        assert isinstance(comm.async_error(), nccl.NcclRemoteError) == reports
        child.abort()
    rank.wait_event("derives", 0)
    comm.abort()


@_MODES
@pytest.mark.parametrize("revoked", [False, True])
def test_a_failed_derivation_is_reported(launch: Launcher, strict: bool, revoked: bool) -> None:
    env = {"HOSTNCCL_STRICT": str(int(strict))}
    launch(3, _failing_to_derive, strict, revoked, env=env, ids=2, timeout=30)


def _cancelled(rank: Rank, strict: bool) -> None:
    """In NCCL a communicator of a failed group remains until it is aborted."""
    lib, comm = raw.load("host"), rank.comm.handle
    x = np.ones(1, np.float32)
    lib.ncclGroupStart()
    created = lib.ncclCommInitRank(2, rank.unique_ids[1], rank.rank)
    lib.ncclCommSplit(comm, raw.NCCL_SPLIT_NOCOLOR, 0, None)
    lib.ncclSend(x.ctypes.data, 1, raw.ncclFloat32, rank.rank, comm, 0)
    with pytest.raises(nccl.NcclInvalidUsageError, match="more sends to itself"):
        lib.ncclGroupEnd()
    with nullcontext() if strict else pytest.raises(nccl.NcclInvalidArgumentError):
        lib.ncclCommAbort(created)
    rank.comm.all_reduce(x)


def _growing(rank: Rank, strict: bool) -> None:
    lib = raw.load("host")
    comm = rank.comm.handle
    if rank.rank == 0:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NCCL_COMM_ID", "127.0.0.1:1")
            with _refused(strict, "NCCL_COMM_ID"):
                lib.ncclCommGetUniqueId(comm)
        if strict:
            lib.ncclCommGetUniqueId(comm)
            with _refused(strict, "call ncclCommGrow first"):
                lib.ncclCommSplit(comm, 0, 0, None)
    if not strict:
        lib.ncclCommDestroy(lib.ncclCommSplit(comm, 0, rank.rank, None))


def _operation_in_progress(rank: Rank, strict: bool) -> None:
    """In NCCL until the program has queried the state of a non-blocking communicator."""
    lib = raw.load("host")
    comm = rank.communicator(1, config=nccl.Config(blocking=False))
    comm.wait_ready(20)
    x = np.ones(1, np.float32)
    reduce = (x.ctypes.data, x.ctypes.data, 1, raw.ncclFloat32, raw.ncclSum, comm.handle, 0)
    for _ in range(2):
        lib.ncclAllReduce(*reduce)
        lib.ncclCommGetAsyncError(comm.handle)
    lib.ncclAllReduce(*reduce)
    with _refused(strict, "a call on comm is in progress"):
        lib.ncclAllReduce(*reduce)
    assert x[0] == (8 if strict else 16)
    rank.comm.all_reduce(x)  # no rank aborts before
    comm.abort()


def _refusals(rank: Rank, strict: bool) -> None:
    """In NCCL a rejected call becomes the permanent error of a non-blocking communicator."""
    lib = raw.load("host")
    comm = rank.communicator(1, config=nccl.Config(blocking=False))
    comm.wait_ready(20)
    x = np.ones(1, np.float32)
    with pytest.raises(nccl.NcclInvalidArgumentError, match="root=7 is not in"):
        lib.ncclBroadcast(x.ctypes.data, x.ctypes.data, 1, raw.ncclFloat32, 7, comm.handle, 0)
    for _ in range(2):
        assert (lib.ncclCommGetAsyncError(comm.handle) == raw.ncclInvalidArgument) == strict
    if not strict:
        comm.all_reduce(x)
        assert x[0] == 2
    rank.comm.all_reduce(x)  # the other communicator is not affected
    comm.abort()


@_MODES
@pytest.mark.parametrize(
    "program",
    [
        _wait_first,
        _one_sided_first,
        _context_by_context,
        _id_used_again,
        _captured_and_not,
        _two_under_way,
        _graphs_of_both,
        _registrations,
        _deregistered_under_a_put,
        _arguments,
        _operators,
        _simulations,
        _shared,
        _cancelled,
        _growing,
        _operation_in_progress,
        _refusals,
    ],
    ids=lambda program: program.__name__.strip("_"),
)
def test_programs(launch: Launcher, program: Callable[..., None], strict: bool) -> None:
    env = {"HOSTNCCL_STRICT": str(int(strict))}
    launch(2, program, strict, env=env, ids=2, timeout=30)


@on_ranks(2, fresh=True)
def test_all_ranks_are_strict(rank: Rank) -> None:
    os.environ["HOSTNCCL_STRICT"] = str(rank.rank)
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about HOSTNCCL_STRICT: rank 0"):
        rank.communicator()


def test_a_refused_ncclCommInitAll_creates_no_communicator() -> None:  # noqa: N802
    code = """
import ctypes, pathlib
from pynccl import raw
lib = raw.load("host")
lib.ncclGroupStart()
config = raw.ncclConfig_t()
config.blocking = 0
lib.ncclCommInitRankConfig(2, lib.ncclGetUniqueId(), 0, config)
host = ctypes.CDLL(str(pathlib.Path(raw.__file__).parent / "lib" / "libhostnccl.so"))
comms = (ctypes.c_void_p * 3)(1, 1, 1)
print(host.ncclCommInitAll(comms, 3, None), list(comms))
"""
    printed = run_python("-c", code, HOSTNCCL_STRICT="1")
    assert printed.stdout == f"{raw.ncclInvalidArgument} [None, None, None]\n", printed.stderr
