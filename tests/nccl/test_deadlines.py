"""Proves that a call does not wait longer than its time limit for a missing rank but raises an
error that names the operation, after which the others continue without it; and that operations that
end in time do not expire. The other actions of a time limit are none, the end of the process, or a
call of the program's function, even while the main thread blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import errors, nccl
from tests.nccl.test_async import comm_stream_of, start
from tests.nccl.test_life import check_works
from tests.support import gpu, holdings
from tests.support.blocking import in_threads, wait_until
from tests.support.capsule import open_capsule
from tests.support.commands import run_python
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.long

_LIMIT = 0.6  # seconds; a wait that ignores it ends with the launch
_LONG = 30.0
_ABSENT = 1
_LIMITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds; on a busy machine the other rank exceeds some


def _grow_without_the_absent(rank: Rank) -> bool:
    """Whether the rank's own limit expired, not that of another rank before."""
    comm = rank.comm
    comm.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0, 2)
        comm.abort()
        return False
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError)) as raised:
        comm.grow(4, comm.get_unique_id() if rank.rank == 0 else None)
    is_late = isinstance(raised.value, nccl.NcclTimeoutError)
    if is_late:
        raised.match(rf"ncclCommGrow.* on rank {rank.rank} did not complete within {_LIMIT:g} s")
    else:  # the other rank's limit expired first
        raised.match("revoked")
    comm.timeout = _LONG
    with comm.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0, 2])
    rank.set_event("done")
    comm.close()
    return is_late


def test_a_grow_without_a_rank_ends(launch: Launcher) -> None:
    """Other calls are tested in tests/reliability/cells.py, all waits in test_failures.py."""
    assert any(launch(3, _grow_without_the_absent, fresh=True, timeout=40))


@on_ranks(1, fresh=True, env={"HOSTNCCL_DEADLOCK_MS": "0"})
def test_all_missing_ranks_are_listed(rank: Rank) -> None:
    """All ranks are in this process, which may find the deadlock first if it is preempted."""
    comms, stream = nccl.Communicator.init_all(12, provider="host"), nccl.Stream("host")
    comms[0].timeout = _LIMIT
    comms[0].all_reduce(np.ones(4), stream=stream)
    with pytest.raises(nccl.NcclTimeoutError, match=r"waited for ranks 1, .* and 11 in") as raised:
        stream.synchronize()
    assert raised.value.missing_ranks == list(range(1, 12))
    for comm in comms:
        comm.abort()


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_a_split_of_a_revoked_communicator_ends(rank: Rank) -> None:
    """NCCL refuses another revocation, which ends the split on CPUs."""
    gpu.require(rank.provider, "ncclCommRevoke")
    comm, called = rank.communicator(1), threading.Event()
    comm.on_timeout = lambda *_: called.set()
    check_works(rank, comm, [0, 1])
    comm.timeout = _LIMIT
    comm.revoke()
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        comm.abort()
        return
    text = f"ncclCommSplit on rank 0 did not complete within {_LIMIT:g} s"
    with pytest.raises(nccl.NcclTimeoutError, match=text):
        comm.split(0)
    assert called.wait(20)
    if rank.provider == "cuda":  # the call is still in NCCL, which uses the handle
        comm.abort()
        assert comm.closed
        rank.set_event("done")
        return
    comm.timeout = _LONG
    with comm.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0])
    rank.set_event("done")
    comm.close()


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
@pytest.mark.parametrize(
    ("provider", "end"),
    [
        ("host", "close"),
        ("host", "deletion"),
        pytest.param("cuda", "close", marks=pytest.mark.gpu),
        pytest.param("cuda", "finalize", marks=pytest.mark.gpu),
    ],
    indirect=["provider"],
)
@on_ranks(2, by="provider", ids=2, timeout=60)
def test_ending_a_communicator_with_queued_work_has_its_limit(rank: Rank, end: str) -> None:
    comm, stream = rank.communicator(1), rank.stream()
    check_works(rank, comm, [0, 1])
    comm.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        comm.abort()
        return
    buffer = rank.memory.put(np.ones(8, np.float32))
    comm.all_reduce(buffer, nccl.MAX, stream=stream)
    if end == "deletion":
        del comm
        gc.collect()
    else:
        with pytest.raises(nccl.NcclTimeoutError, match=r"all_reduce #\d|ncclComm"):
            getattr(comm, end)()
        comm.close()
    with contextlib.suppress(nccl.NcclError):
        stream.synchronize()
    rank.set_event("done")


def test_calls_in_time_do_not_expire() -> None:
    """Pauses longer than the limit, and a call that waits for most of it. On a busy machine the
    other rank may be late. A call that expires then has lasted for the limit.
    """
    for limit in _LIMITS[1:]:
        comms = nccl.Communicator.init_all(2, provider="host")
        comms[0].timeout = limit
        arrays = [np.ones(4), np.ones(4)]
        began = time.monotonic()
        try:
            for delay in (0.0, 0.6 * limit):
                late = threading.Timer(delay, comms[1].all_reduce, [arrays[1]])
                late.start()
                began = time.monotonic()
                comms[0].all_reduce(arrays[0])
                late.join()
                time.sleep(1.3 * limit)
                assert not comms[0].expired
        except nccl.NcclTimeoutError:
            assert time.monotonic() - began >= limit
            for comm in comms:
                comm.abort()
            late.join()
            continue
        assert (arrays[0] == 4).all()
        for comm in comms:
            comm.close()
        return
    raise AssertionError(f"another rank was late within {limit} s")


def test_a_long_queue_does_not_expire(pair: list[nccl.Communicator]) -> None:
    streams, arrays = [nccl.Stream("host") for _ in pair], [np.ones(1000) for _ in pair]
    for comm in pair:
        comm.timeout = 60
    for _ in range(1000):
        for comm, array, stream in zip(pair, arrays, streams, strict=True):
            comm.all_reduce(array, nccl.MAX, stream=stream)
    for stream in streams:
        stream.synchronize()
    wait_until(lambda: pair[0].flight_record()[-1].state == "done")
    assert {record.state for record in pair[0].flight_record()} == {"done"}


@on_ranks(2, by="provider", timeout=300)
def test_operations_without_an_event_do_not_expire(rank: Rank) -> None:
    """On a stream that pynccl does not own, in bursts, with pauses longer than the limit. On a
    busy machine the other rank may be late, but not for each limit.
    """
    for limit in _LIMITS:
        comm, stream = rank.comm.split(0), rank.stream()
        handle = stream.handle
        buffer = rank.memory.put(np.ones(4, np.float32))
        comm.all_reduce(buffer, stream=handle)
        stream.synchronize()
        comm.timeout = limit
        with contextlib.suppress(nccl.NcclTimeoutError, nccl.NcclRemoteError):
            for _ in range(3):
                for _ in range(100):
                    comm.all_reduce(buffer, nccl.MAX, stream=handle)
                time.sleep(1.6 * limit)
        late = rank.memory.put(np.array([comm.expired], np.float32))
        rank.comm.all_reduce(late, nccl.MAX)
        if not rank.memory.get(late)[0]:
            stream.synchronize()
            comm.close()
            return
        comm.abort()
    raise AssertionError(f"operations have expired within {limit} s")


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_the_last_operation_on_a_foreign_stream_expires(rank: Rank) -> None:
    """The monitor cannot record an event on the stream later: it may be destroyed by then."""
    comm = rank.communicator(1)
    capsule = comm.__pynccl_communicator__()
    opened, self = open_capsule(capsule)
    stream = ctypes.c_void_p()
    create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)(
        opened.driver_function(self, b"cuStreamCreateWithPriority")
    )
    synchronize = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(
        opened.driver_function(self, b"cuStreamSynchronize")
    )
    assert create(ctypes.addressof(stream), 1, 0) == 0
    assert stream.value is not None
    buffer = rank.memory.put(np.ones(1000, np.float32))
    for _ in range(4):  # only the first one gets an event
        comm.all_reduce(buffer, nccl.MAX, stream=stream.value)
    comm.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
    else:
        comm.all_reduce(buffer, nccl.MAX, stream=stream.value)
        wait_until(lambda: comm.expired)
        with pytest.raises(nccl.NcclTimeoutError, match="all_reduce #5 "):
            comm.all_reduce(buffer, nccl.MAX, stream=stream.value)
        rank.set_event("done")
    comm.abort()
    synchronize(stream)  # until then the buffer is in use


def test_deadlines_nest_and_are_per_thread(pair: list[nccl.Communicator]) -> None:
    pair[0].timeout = 100
    others: list[nccl.NcclTimeoutError] = []

    def wait_in_another_thread() -> None:
        try:
            pair[0].recv(np.ones(4), 1)
        except nccl.NcclTimeoutError as error:
            others.append(error)

    thread = threading.Thread(target=wait_in_another_thread)
    with nccl.deadline(50), nccl.deadline(0.4), nccl.deadline(60):
        thread.start()
        time.sleep(0.8)
        assert thread.is_alive()  # this thread's limit is not its limit
    pair[1].send(np.ones(4), 0)
    thread.join(20)
    assert not thread.is_alive()
    with (
        nccl.deadline(50),
        nccl.deadline(0.4),
        nccl.deadline(60),
        pytest.raises(nccl.NcclTimeoutError, match=r"within 0\.4 s(: \w|; \w)"),
    ):
        pair[0].recv(np.ones(4), 1)
    assert not others
    scope = nccl.deadline(0.4)
    with scope:
        pass
    with pytest.raises(ValueError, match="it was not entered"):  # the scope has ended
        scope.__exit__(None, None, None)


def _expires(comm: nccl.Communicator, queued: float = 0.6) -> bool:
    """Whether this thread's limit ends an operation that is queued for some seconds."""
    stream = nccl.Stream("host")
    stream.launch(partial(time.sleep, queued))
    comm.all_reduce(np.ones(1), stream=stream)
    try:
        stream.synchronize()
    except nccl.NcclTimeoutError:
        return True
    return False


def test_deadlines_end_in_any_order(comm: nccl.Communicator) -> None:
    """As those of coroutines do: the first one does not outlive its end."""
    first, second = nccl.deadline(0.2), nccl.deadline(50)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not _expires(comm)
    second.__exit__(None, None, None)
    with nccl.deadline(60):
        assert not _expires(comm)


def test_a_deadline_of_several_threads(comm: nccl.Communicator) -> None:
    """A thread ends its own scope, or else that of the thread that entered it last."""
    scope = nccl.deadline(0.2)
    scope.__enter__()
    in_threads(scope.__enter__)
    scope.__exit__(None, None, None)
    assert not _expires(comm)
    scope.__enter__()
    in_threads(partial(scope.__exit__, None, None, None))
    with nccl.deadline(60):
        assert not _expires(comm)


def test_a_deadline_of_a_communicator_without_a_limit(comm: nccl.Communicator) -> None:
    comm.timeout = None
    with nccl.deadline(0.2):
        assert _expires(comm)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_limits_are_checked(comm: nccl.Communicator, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"timeout: .* must be above 0 seconds"):
        nccl.Config(timeout=seconds)
    with pytest.raises(ValueError, match=r"timeout: .* must be above 0 seconds"):
        comm.timeout = seconds
    with pytest.raises(ValueError, match=r"seconds: .* must be above 0 seconds"):
        nccl.deadline(seconds)


def test_the_limit_is_inherited_and_has_a_default(comm: nccl.Communicator) -> None:
    assert comm.timeout == 1800
    comm.timeout = None
    assert comm.timeout is None
    for given, seconds in ((7, 7), (float("inf"), None)):
        unique_id, config = nccl.get_unique_id("host"), nccl.Config(timeout=given)
        one = nccl.Communicator(1, unique_id, 0, config=config, provider="host")
        with one, one.split(0) as child:
            assert (one.timeout, child.timeout) == (seconds, seconds)


def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("12.5", 12.5), ("0", None), ("", 1800)):
        monkeypatch.setenv("PYNCCL_TIMEOUT", value)
        with nccl.Communicator.init_all(1, provider="host")[0] as comm:
            assert comm.timeout == expected
    monkeypatch.setenv("PYNCCL_TIMEOUT", "5 min")
    before = holdings.count()
    with pytest.raises(ValueError, match="PYNCCL_TIMEOUT: '5 min'"):
        nccl.Communicator.init_all(2, provider="host")
    holdings.check(before)


@on_ranks(2, ids=2)
def test_recover_has_its_own_limit(rank: Rank) -> None:
    """The communicator's timeout is shorter than the wait for a late rank."""
    expired: list[object] = []
    config = nccl.Config(timeout=_LIMIT, on_timeout=lambda _comm, error: expired.append(error))
    comm = rank.communicator(1, config=config)
    if rank.rank == 0:
        threading.Timer(2 * _LIMIT, rank.set_event, ["late"]).start()
    rank.wait_event("late", *range(rank.rank))
    with comm.recover(_LONG) as recovered:
        recovered.timeout = _LONG
        check_works(rank, recovered, [0, 1])
    assert not expired


# Ends on GPUs: ncclCommRevoke waits for the work that precedes the communicator's operations on
# their streams, ncclCommFinalize waits for its graphs and cannot be revoked, and after either of
# them NCCL frees memory immediately.


def _connected(rank: Rank, index: int) -> nccl.Communicator:
    comm = rank.communicator(index)
    check_works(rank, comm, list(range(rank.nranks)))
    return comm


def _graph_of_torch(rank: Rank, comm: nccl.Communicator, *, async_op: bool = False) -> Any:  # noqa: ANN401
    """With an all-reduce, by async_op on a stream of pynccl that joins the capture."""
    import torch

    torch.cuda.set_device(rank.device)
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    comm_stream = comm_stream_of(rank, comm) if async_op else None
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        if comm_stream:
            start(comm_stream, x).wait()
        else:
            comm.all_reduce(x)
    return graph


def _graph_of_pynccl(rank: Rank, comm: nccl.Communicator) -> nccl.Graph:
    stream, buffer = rank.stream(), rank.memory.put(np.ones(4, np.float32))
    with nccl.capture(stream) as graph:
        comm.all_reduce(buffer, stream=stream)
    return graph


@pytest.mark.gpu
@on_ranks(2, provider="cuda", ids=2, timeout=60)
def test_close_before_a_graph_of_torch_ends(rank: Rank) -> None:
    comm = _connected(rank, 1)
    graph = _graph_of_torch(rank, comm)
    comm.timeout = _LIMIT
    text = rf"ncclCommDestroy on rank {rank.rank} did not complete within {_LIMIT:g} s"
    with pytest.raises(nccl.NcclTimeoutError, match=text):
        comm.close()
    assert comm.closed
    comm.close()
    graph.reset()


_GRAPHS: dict[str, Callable[[Rank, nccl.Communicator], Any]] = {
    "torch": _graph_of_torch,
    "asynchronous": partial(_graph_of_torch, async_op=True),
    "pynccl": _graph_of_pynccl,
}


@pytest.mark.parametrize(
    ("how", "end"),
    [("torch", "close"), ("torch", "abort"), ("asynchronous", "close"), ("pynccl", "abort")],
)
@pytest.mark.gpu
@on_ranks(2, provider="cuda", ids=2, timeout=60)
def test_a_graph_outlives_a_revoked_communicator(rank: Rank, how: str, end: str) -> None:
    gpu.require(rank.provider, "ncclCommRevoke")
    comm = _connected(rank, 1)
    graph = _GRAPHS[how](rank, comm)
    comm.revoke()
    getattr(comm, end)()
    assert comm.closed
    if how == "pynccl":
        graph.close()
    else:
        graph.reset()


def _issue_behind(
    rank: Rank, first: nccl.Communicator, second: nccl.Communicator
) -> tuple[nccl.Stream, list[Any]] | None:
    """Return a stream with an all_reduce of the first communicator behind one of the second, and
    their buffers. Neither completes: the absent rank gets None and only aborts both at the end.
    """
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        first.abort()
        second.abort()
        return None
    stream = rank.stream()
    buffers = [rank.memory.put(np.ones(4, np.float32)) for _ in range(2)]
    for comm, buffer in zip((second, first), buffers, strict=True):
        comm.all_reduce(buffer, stream=stream)
    return stream, buffers


@pytest.mark.gpu
@on_ranks(2, provider="cuda", ids=3, timeout=90)
def test_the_revocation_of_an_expired_communicator_waits_for_another(rank: Rank) -> None:
    """That of the first waits for that of the second, which expires later."""
    gpu.require(rank.provider, "ncclCommRevoke")
    first, second = _connected(rank, 1), _connected(rank, 2)
    expired = [threading.Event(), threading.Event()]
    for comm, seconds, event in zip((first, second), (_LIMIT, 6 * _LIMIT), expired, strict=True):
        comm.timeout = seconds
        comm.on_timeout = lambda *_, event=event: event.set()
    issued = _issue_behind(rank, first, second)
    if issued is None:
        return
    stream, _buffers = issued
    assert expired[0].wait(30)
    assert expired[1].wait(30)
    with pytest.raises(nccl.NcclTimeoutError, match="did not complete within"):
        stream.synchronize()
    with second.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0])
    for comm in (first, second):
        assert comm.expired
        assert not comm.closed
        comm.close()
    rank.set_event("done")


@pytest.mark.gpu
@on_ranks(2, provider="cuda", ids=3, timeout=60)
def test_a_revocation_behind_another_communicator_expires(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommRevoke")
    first, second = _connected(rank, 1), _connected(rank, 2)
    issued = _issue_behind(rank, first, second)
    if issued is None:
        return
    stream, _buffers = issued
    first.timeout = 60
    with (
        nccl.deadline(_LIMIT),
        pytest.raises(nccl.NcclTimeoutError, match=r"^ncclCommRevoke on rank 0 .* within 0\.6 s$"),
    ):
        first.revoke()
    assert first.revoked
    second.revoke()
    with contextlib.suppress(nccl.NcclError):
        stream.synchronize()
    first.close()
    second.close()
    rank.set_event("done")


# Actions


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_a_function_is_called_once(rank: Rank) -> None:
    called: list[tuple[nccl.Communicator, nccl.NcclError]] = []
    done = threading.Event()

    def note(comm: nccl.Communicator, error: nccl.NcclError) -> None:
        called.append((comm, error))
        done.set()

    config = nccl.Config(on_timeout=note)
    assert config.on_timeout is note
    comm = rank.communicator(1, config=config)
    assert comm.on_timeout is note
    stream, buffer = rank.stream(), rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(buffer, stream=stream)
    stream.synchronize()
    if rank.rank == 1:
        rank.wait_event("done", 0)
        comm.abort()
        return
    comm.timeout = 0.5
    with pytest.raises(nccl.NcclTimeoutError):  # noqa: PT012
        comm.all_reduce(buffer, stream=stream)
        stream.synchronize()
    assert done.wait(20)
    ((told, error),) = called
    assert told is comm
    assert isinstance(error, nccl.NcclTimeoutError)
    assert "all_reduce #2" in str(error)
    assert comm.expired
    comm.timeout = 30
    with comm.shrink([1], abort=True) as alone:
        assert alone.on_timeout is note  # inherited like the other settings
    rank.set_event("done")
    comm.close()
    assert len(called) == 1


def test_the_function_may_wait_for_the_error_and_use_the_communicator(
    pair: list[nccl.Communicator],
) -> None:
    pair[0].timeout = 0.3
    raised, shrunk = threading.Event(), []

    def recover(comm: nccl.Communicator, _error: nccl.NcclError) -> None:
        if raised.wait(20):
            comm.timeout = 30
            shrunk.append(comm.shrink([1], abort=True))

    pair[0].on_timeout = recover
    with pytest.raises(nccl.NcclTimeoutError):
        pair[0].all_reduce(np.ones(4))
    raised.set()
    wait_until(lambda: shrunk)
    assert shrunk[0].nranks == 1
    shrunk[0].abort()


def test_others_expire_while_a_function_runs() -> None:
    """A function that does not return delays no other communicator."""
    comms = [nccl.Communicator.init_all(2, provider="host") for _ in range(2)]
    stop = threading.Event()
    ended: list[bool] = []
    for pair in comms:
        pair[0].timeout = 0.3
        pair[0].on_timeout = lambda *_: ended.append(stop.wait(40))
    for pair in comms:
        with pytest.raises(nccl.NcclTimeoutError):
            pair[0].all_reduce(np.ones(4))
    assert not ended
    stop.set()
    for pair in comms:
        for comm in pair:
            comm.abort()


@pytest.mark.parametrize("raises", ["function", "arguments"])
def test_a_function_that_raises(
    pair: list[nccl.Communicator], monkeypatch: pytest.MonkeyPatch, raises: str
) -> None:
    seen: list[BaseException | None] = []
    hooked = threading.Event()

    def hook(unraisable: object) -> None:
        seen.append(unraisable.exc_value)  # type: ignore[attr-defined]
        hooked.set()

    def fail(*_: object) -> None:
        raise RuntimeError("mine")

    def create(*arguments: Any) -> nccl.NcclError:  # noqa: ANN401
        if threading.get_ident() != caller:
            fail()
        return from_result(*arguments)

    caller, from_result = threading.get_ident(), errors.from_result
    monkeypatch.setattr(sys, "unraisablehook", hook)
    if raises == "arguments":
        monkeypatch.setattr(errors, "from_result", create)
    pair[0].timeout = 0.3
    pair[0].on_timeout = fail
    with pytest.raises(nccl.NcclTimeoutError):
        pair[0].all_reduce(np.ones(4))
    assert hooked.wait(20)
    assert str(seen[0]) == "mine"


@pytest.mark.parametrize(
    ("value", "error"), [("ignore", ValueError), (3, TypeError), (b"raise", TypeError)]
)
def test_actions_are_checked(
    comm: nccl.Communicator, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"on_timeout: .*(ignore|3|raise)"):
        nccl.Config(on_timeout=value)
    with pytest.raises(error, match="on_timeout: "):
        comm.on_timeout = value  # type: ignore[assignment]


def test_children_inherit_the_action(comm: nccl.Communicator) -> None:
    def note(*_: object) -> None:
        pass

    comm.on_timeout = note
    with comm.split(0) as child:
        assert child.on_timeout is note
        child.on_timeout = "abort"
        assert comm.on_timeout is note
        with child.split(0) as grandchild:
            assert grandchild.on_timeout == "abort"


_ABORT = """
import ctypes, os, threading
import numpy as np
from pynccl import nccl
comms = nccl.Communicator.init_all(2, provider="host")
comms[0].timeout = 0.3
{before}
print(comms[0].on_timeout, flush=True)
{wait}
print("survived", flush=True)
"""
_WAITS = {
    "a call": "comms[0].all_reduce(np.ones(4))",
    # The main thread holds the GIL and never returns to Python.
    "the GIL": """
threading.Thread(target=comms[0].all_reduce, args=[np.ones(4)], daemon=True).start()
ctypes.PyDLL(None).sleep(600)
""",
}


@pytest.mark.parametrize(("wait", "how"), [("a call", "environment"), ("the GIL", "attribute")])
def test_the_process_is_aborted(tmp_path: Path, wait: str, how: str) -> None:
    before = "comms[0].on_timeout = 'abort'" if how == "attribute" else ""
    env = {"PYNCCL_ON_TIMEOUT": "abort"} if how == "environment" else {}
    env |= {"PYNCCL_FLIGHT_FILE": f"{tmp_path}/flight_", "RANK": "0"}
    done = run_python("-c", _ABORT.format(before=before, wait=_WAITS[wait]), **env)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "abort\n"), done
    text = "pynccl: all_reduce #1 (float64, count=4, sum) on rank 0 did not complete"
    assert text in done.stderr
    assert (tmp_path / "flight_0").exists()


def test_the_environment_sets_the_default_action(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("raise", ""):
        monkeypatch.setenv("PYNCCL_ON_TIMEOUT", value)
        with nccl.Communicator.init_all(1, provider="host")[0] as comm:
            assert comm.on_timeout == "raise"
    monkeypatch.setenv("PYNCCL_ON_TIMEOUT", "exit")
    before = holdings.count()
    with pytest.raises(ValueError, match="PYNCCL_ON_TIMEOUT: 'exit' is neither"):
        nccl.Communicator.init_all(2, provider="host")
    holdings.check(before)


def test_the_destructor_of_a_replaced_function_may_use_the_attribute(
    comm: nccl.Communicator,
) -> None:
    seen: list[object] = []

    class Function:
        def __call__(self, *_: object) -> None:
            pass

        def __del__(self) -> None:
            seen.append(comm.on_timeout)

    comm.on_timeout = Function()
    comm.on_timeout = "abort"
    assert seen == ["abort"]
