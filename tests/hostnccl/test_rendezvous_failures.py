"""Proves that the failure of a rank after others have joined is reported immediately on every rank,
with the rank and the reason: no free descriptor, address space, or memory to register a window.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pynccl import libraries, nccl
from tests.hostnccl.test_death_in_init import arrive, wait_for_exit
from tests.support.blocking import wait_until, when_blocked
from tests.support.cpp import compile_to_preload
from tests.support.launcher import Launcher, Outcome, Run
from tests.support.rank import Rank, wait_for

_SOON = 15.0  # seconds, on a busy machine; the deadline of a rendezvous is 300


@contextlib.contextmanager
def _free_descriptors(number: int) -> Iterator[None]:
    """Limit the number of additional descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    opened = []
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    for _ in range(number):
        os.close(opened.pop())
    try:
        yield
    finally:
        for file in opened:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _address_space(extra: int) -> Iterator[None]:
    """Limit the number of additional mapped bytes."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


Limit = Callable[[int], contextlib.AbstractContextManager[None]]


def _init_with_limit(rank: Rank, limit: Limit, number: int, last: int) -> tuple[str, str, float]:
    with rank.communicator(1) as comm:  # all processes have started
        comm.all_reduce(np.ones(1))
    if rank.rank == last:  # another rank is the host
        rank.wait_event("waits", *range(last))
    else:
        when_blocked(lambda: rank.set_event("waits"))
    started = time.monotonic()
    try:
        with limit(number) if rank.rank == last else contextlib.nullcontext():
            rank.communicator()
    except nccl.NcclError as error:
        return type(error).__name__, str(error), time.monotonic() - started
    raise AssertionError("made, though a rank has no access to the memory")


@pytest.mark.parametrize(
    ("nranks", "limit", "number", "reason"),
    [
        (2, _free_descriptors, 1, "no free file descriptor for the memory"),  # one for the socket
        (4, _address_space, 1 << 20, "mmap of"),
    ],
)
def test_a_rank_that_cannot_map_the_memory_is_named(
    launch: Launcher, nranks: int, limit: Limit, number: int, reason: str
) -> None:
    last = nranks - 1
    arguments = (limit, number, last)
    results = launch(nranks, _init_with_limit, *arguments, ids=2, timeout=30, fresh=True)
    for rank, (kind, text, took) in enumerate(results):
        assert kind == ("NcclSystemError" if rank == last else "NcclRemoteError"), text
        assert reason in text
        assert took < _SOON
        assert rank == last or f"rank {last} (pid" in text


def _id_without_descriptor(rank: Rank) -> str:
    nccl.get_unique_id("host")  # loads the library
    with (
        _free_descriptors(0),
        pytest.raises(nccl.NcclSystemError, match="Too many open files") as caught,
    ):
        rank.communicator()
    return str(caught.value)


def test_an_id_is_not_foreign_if_descriptors_are_exhausted(launch: Launcher) -> None:
    for text in launch(2, _id_without_descriptor, fresh=True):
        assert "another machine" not in text


def _register(rank: Rank, limit: Limit, number: int) -> str:
    """Rank 1 registers a window under a limit; return the outcome. Then all do without."""
    comm = rank.comm
    buffer = comm.mem_alloc(1 << 22)
    comm.all_reduce(np.ones(1))
    error = ""
    started = time.monotonic()
    with limit(number) if rank.rank == 1 else contextlib.nullcontext():
        try:
            comm.register_window(buffer).close()
        except nccl.NcclError as raised:
            error = str(raised)
    assert time.monotonic() - started < _SOON
    comm.all_reduce(np.ones(1))
    comm.register_window(buffer).close()
    return error


@pytest.mark.parametrize("free", range(8))
def test_no_rank_has_a_window_if_one_lacks_descriptors(launch: Launcher, free: int) -> None:
    texts = launch(3, _register, _free_descriptors, free, timeout=30)
    _check_same_reason(texts, "descriptor|Too many open files", may_succeed=free > 3)


def _register_alone(rank: Rank) -> None:
    buffer = rank.comm.mem_alloc(1 << 12)
    with _free_descriptors(0):
        rank.comm.register_window(buffer).close()


def test_ranks_of_one_process_register_a_window_without_descriptors(launch: Launcher) -> None:
    launch(1, _register_alone)


def test_no_rank_has_a_window_if_one_lacks_address_space(launch: Launcher) -> None:
    texts = launch(3, _register, _address_space, 3 << 20, timeout=30)
    _check_same_reason(texts, "reserving .* of addresses")


def _check_same_reason(texts: list[str], reason: str, *, may_succeed: bool = False) -> None:
    if may_succeed and not any(texts):
        return
    for rank, text in enumerate(texts):
        assert re.search(reason, text), texts
        assert rank == 1 or "rank 1 (pid" in text, texts


_FAILING_MALLOC = """
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <string.h>

void* __libc_malloc(size_t);
static _Thread_local long left = -1;
static size_t begin, end;

static int find(struct dl_phdr_info* info, size_t size, void* unused) {
  if (strstr(info->dlpi_name, "libhostnccl.so") == NULL) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
    begin = info->dlpi_addr + part->p_vaddr;
    end = begin + part->p_memsz;
  }
  return 1;
}

// The allocation of libhostnccl.so in this thread that fails: 0 is the next one, -1 is none.
void fail_malloc(long which) {
  dl_iterate_phdr(find, NULL);
  left = which;
}

long malloc_left(void) { return left; }

void* malloc(size_t size) {
  const size_t caller = (size_t)__builtin_return_address(0);
  if (left >= 0 && caller >= begin && caller < end && left-- == 0) return NULL;
  return __libc_malloc(size);
}
"""


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("malloc")
    try:
        return str(compile_to_preload(folder, "malloc", _FAILING_MALLOC))
    except subprocess.CalledProcessError:
        pytest.skip("the C library has no __libc_malloc")


def _register_without_memory(rank: Rank, library: str) -> int:
    """Rank 1 has no memory for its allocation 0, 1, 2, ... of a registration, until there are no
    more. All ranks have the window or none has, and none waits. Returns the number of errors.
    """
    malloc = ctypes.CDLL(library)
    malloc.malloc_left.restype = ctypes.c_long
    malloc.fail_malloc.argtypes = [ctypes.c_long]
    failures = 0
    for number in range(len(rank.unique_ids)):
        comm = rank.communicator(number)
        buffer = comm.mem_alloc(1 << 12)
        comm.all_reduce(np.ones(1))
        reason = ""
        started = time.monotonic()
        try:
            if rank.rank == 1:
                malloc.fail_malloc(number)
            window = comm.register_window(buffer)
        except (nccl.NcclError, nccl.DriverError, MemoryError) as error:
            reason = str(error)
        finally:
            injected = rank.rank == 1 and malloc.malloc_left() < 0
            malloc.fail_malloc(-1)
        assert time.monotonic() - started < _SOON, number
        if reason:
            assert re.search("rank 1|out of memory", reason), reason
            assert injected or rank.rank != 1, number
            failures += 1
            comm.abort()
            continue
        window.close()  # or the library does not need the allocation
        more = np.array([injected])
        comm.all_reduce(more, nccl.MAX)
        comm.close()
        if not more[0]:
            return failures
    raise AssertionError("every registration failed")


def test_a_window_without_memory_is_no_window_on_any_rank(
    launch: Launcher, failing_malloc: str
) -> None:
    environment = {"LD_PRELOAD": failing_malloc}
    results = launch(
        2, _register_without_memory, failing_malloc, ids=200, env=environment, timeout=120
    )
    assert results[0] == results[1]
    assert results[0] > 5


_STOPPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>

// A call stops this process once it has sent so many records.
int in_accept4 = INT_MAX, in_poll = INT_MAX, in_process_vm_readv = INT_MAX, in_sendmsg = INT_MAX;
int sent;
int in_second_file;  // whether it stops before it sends a second descriptor
int after_second_file;  // whether it stops before it receives a record after that
static int files;

static void stop(int* in) {
  if (sent < *in) return;
  *in = INT_MAX;
  raise(SIGSTOP);
}

int accept4(int fd, struct sockaddr* address, socklen_t* size, int flags) {
  int (*function)(int, struct sockaddr*, socklen_t*, int) = dlsym(RTLD_NEXT, "accept4");
  stop(&in_accept4);
  return function(fd, address, size, flags);
}

int poll(struct pollfd* files, nfds_t count, int ms) {
  int (*function)(struct pollfd*, nfds_t, int) = dlsym(RTLD_NEXT, "poll");
  stop(&in_poll);
  return function(files, count, ms);
}

typedef const struct iovec* Parts;

ssize_t process_vm_readv(pid_t pid, Parts to, unsigned long n, Parts from, unsigned long m,
                         unsigned long flags) {
  ssize_t (*function)(pid_t, Parts, unsigned long, Parts, unsigned long, unsigned long) =
      dlsym(RTLD_NEXT, "process_vm_readv");
  stop(&in_process_vm_readv);
  return function(pid, to, n, from, m, flags);
}

ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  ssize_t (*function)(int, const struct msghdr*, int) = dlsym(RTLD_NEXT, "sendmsg");
  stop(&in_sendmsg);
  ++sent;
  if (message->msg_controllen && ++files == 2 && in_second_file) raise(SIGSTOP);
  return function(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  ssize_t (*function)(int, struct msghdr*, int) = dlsym(RTLD_NEXT, "recvmsg");
  if (files == 2 && after_second_file) raise(SIGSTOP);
  return function(fd, message, flags);
}
"""


@pytest.fixture(scope="module")
def stopping(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(compile_to_preload(tmp_path_factory.mktemp("stopping"), "stopping", _STOPPING))


def _stop_in(library: str, call: str, records: int = 0) -> None:
    """Stop this process in its next such call after so many sent records."""
    preloaded = ctypes.CDLL(library)
    ctypes.c_int.in_dll(preloaded, "sent").value = 0
    ctypes.c_int.in_dll(preloaded, f"in_{call}").value = records


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 20
    while not _is_stopped(pid):
        assert time.monotonic() < deadline, f"process {pid} has not stopped"
        time.sleep(0.01)


def _register_with_a_stopped_rank(rank: Rank, library: str) -> None:
    comm = rank.comm
    buffer = comm.mem_alloc(1 << 12)
    comm.all_reduce(np.ones(1))
    if rank.rank == 0:
        _stop_in(library, "accept4")
        comm.register_window(buffer)
    comm.timeout = 2
    with pytest.raises(nccl.NcclTimeoutError):
        comm.register_window(buffer)
    comm.abort()
    rank.report("done")


def test_a_rank_that_stops_during_a_registration_is_not_waited_for(
    launch: Launcher, stopping: str
) -> None:
    """Rank 1 is connected to rank 0, which does not answer."""

    def end(run: Run) -> None:
        next(run.reports())
        run.kill(0)

    environment = {"LD_PRELOAD": stopping}
    _, other = launch.outcomes(
        2, _register_with_a_stopped_rank, stopping, while_running=end, env=environment, timeout=30
    )
    assert other.ok, other.trace


def _join_a_failing_host(rank: Rank, folder: Path, library: str, call: str, records: int) -> None:
    rank.report(os.getpid())
    wait_for(f"{folder}/{rank.rank}")
    if rank.rank == 1:
        _stop_in(library, call, records)
    nranks = 3 + (rank.rank == 2)
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about nranks"):
        nccl.Communicator(nranks, rank.unique_ids[0], rank.rank, provider="host")
    if rank.rank == 0:
        os._exit(0)


@pytest.mark.parametrize(("call", "records"), [("sendmsg", 2), ("poll", 3)])
def test_a_joiner_gets_the_reason_of_a_host_that_has_exited(
    launch: Launcher, tmp_path: Path, stopping: str, call: str, records: int
) -> None:
    """Rank 1 is preempted before it sends its request, the third record, or while it waits."""

    def drive(run: Run) -> None:
        pids = run.gather_reports()
        arrive(tmp_path, 0, pids[0])
        (tmp_path / "1").touch()
        _wait_until_stopped(pids[1])
        (tmp_path / "2").touch()
        wait_for_exit(pids[0])
        time.sleep(0.3)  # then it checks the process of the host
        run.kill(1, signal.SIGCONT)

    arguments = (tmp_path, stopping, call, records)
    environment = {"LD_PRELOAD": stopping}
    _, *others = launch.outcomes(
        3, _join_a_failing_host, *arguments, while_running=drive, env=environment, timeout=60
    )
    for one in others:
        assert one.ok, one.trace


def _give_up_beside_a_stopped_host(rank: Rank, folder: Path, library: str) -> None:
    rank.report(os.getpid())
    if rank.rank == 2:
        return
    wait_for(f"{folder}/{rank.rank}")
    if rank.rank == 0:
        _stop_in(library, "accept4", 2)  # after its challenge, and after rank 1 has joined
    config = nccl.Config(init_timeout=4 if rank.rank else 60)
    with pytest.raises(nccl.NcclTimeoutError, match=r"rank 1 \(pid \d+\) gave up: 2 of 3 ranks"):
        nccl.Communicator(3, rank.unique_ids[0], rank.rank, config=config, provider="host")
    if rank.rank == 1:
        os._exit(0)


def test_a_host_gets_the_reason_of_a_joiner_that_has_exited(
    launch: Launcher, tmp_path: Path, stopping: str
) -> None:
    """The host is preempted between its looks at the messages and at the process of rank 1."""

    def drive(run: Run) -> None:
        pids = run.gather_reports()
        arrive(tmp_path, 0, pids[0])
        (tmp_path / "1").touch()
        _wait_until_stopped(pids[0])
        wait_for_exit(pids[1])
        run.kill(0, signal.SIGCONT)

    environment = {"LD_PRELOAD": stopping}
    arguments = (tmp_path, stopping)
    host, *_ = launch.outcomes(
        3,
        _give_up_beside_a_stopped_host,
        *arguments,
        while_running=drive,
        env=environment,
        timeout=60,
    )
    assert host.ok, host.trace


def _kill_a_stopped_host(
    launch: Launcher, join: Callable[..., object], folder: Path, library: str
) -> list[Outcome]:
    """Ranks 2, 1 and 0 join in this order; kill the host, rank 2, when it has stopped itself."""

    def drive(run: Run) -> None:
        pids = run.gather_reports()
        arrive(folder, 2, pids[2])
        arrive(folder, 1, pids[1])
        (folder / "0").touch()
        _wait_until_stopped(pids[2])
        time.sleep(0.3)  # rank 1 waits for the first step of the setup
        run.kill(2)

    environment = {"LD_PRELOAD": library}
    *others, _ = launch.outcomes(
        3, join, folder, library, while_running=drive, env=environment, timeout=30
    )
    for one in others:
        assert one.ok, one.trace
    return others


def _join_a_host_that_stops(rank: Rank, folder: Path, library: str) -> str:
    rank.report(os.getpid())
    wait_for(f"{folder}/{rank.rank}")
    ctypes.c_int.in_dll(ctypes.CDLL(library), "in_second_file").value = 1
    with pytest.raises(nccl.NcclRemoteError, match="died") as caught:
        nccl.Communicator(3, rank.unique_ids[0], rank.rank, provider="host")
    return str(caught.value)


def test_a_host_that_dies_between_its_last_messages(
    launch: Launcher, tmp_path: Path, stopping: str
) -> None:
    """Rank 1 has the memory of the communicator, and would wait for rank 0, which has not."""
    others = _kill_a_stopped_host(launch, _join_a_host_that_stops, tmp_path, stopping)
    assert "during the rendezvous that it hosted" in others[0].value
    assert re.search(r"rank 2 \(pid \d+\) died while others were waiting", others[1].value)


def _join_beside_a_failing_rank(rank: Rank, folder: Path, library: str) -> None:
    nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host").close()  # before a limit
    rank.report(os.getpid())
    wait_for(f"{folder}/{rank.rank}")
    ctypes.c_int.in_dll(ctypes.CDLL(library), "after_second_file").value = 1
    fails = rank.rank == 0
    with (
        _address_space(1 << 20) if fails else contextlib.nullcontext(),
        pytest.raises(nccl.NcclSystemError if fails else nccl.NcclRemoteError) as caught,
    ):
        nccl.Communicator(3, rank.unique_ids[0], rank.rank, provider="host")
    if fails:
        assert re.search(r"mmap of \d+ bytes for 3 ranks", str(caught.value))
        wait_for(f"{folder}/failed")
    else:
        assert re.search(r"rank 2 \(pid \d+\) died", str(caught.value))
        (folder / "failed").touch()


def test_a_host_that_dies_with_the_reason_of_a_joiner(
    launch: Launcher, tmp_path: Path, stopping: str
) -> None:
    """Rank 0 cannot map the memory, which the host does not report before it dies. The host has
    completed the first step of the setup, for which rank 1 waits.
    """
    _kill_a_stopped_host(launch, _join_beside_a_failing_rank, tmp_path, stopping)


def _grow_with_a_host_from_outside(rank: Rank, folder: Path, library: str) -> None:
    rank.report(os.getpid())
    if rank.rank == 2:
        wait_for(f"{folder}/id")
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 1 \(pid \d+\) died"):
            nccl.Communicator.join(3, (folder / "id").read_bytes(), 2, provider="host")
        return
    comm = nccl.Communicator(2, rank.unique_ids[0], rank.rank, provider="host")
    unique_id = None
    if rank.rank == 0:
        unique_id = bytes(comm.get_unique_id())
        (folder / "part").write_bytes(unique_id)
        (folder / "part").rename(folder / "id")
    else:
        _stop_in(library, "sendmsg")  # before it proves that it knows the id
    wait_for(f"{folder}/grow")
    with pytest.raises(nccl.NcclRemoteError, match=r"rank 1 \(pid \d+\) died"):
        comm.grow(3, unique_id)
    comm.abort()


@pytest.mark.parametrize("late_host", [False, True])
def test_a_host_from_outside_does_not_know_the_missing_ranks(
    launch: Launcher, tmp_path: Path, stopping: str, late_host: bool
) -> None:
    """Rank 2 hosts the rendezvous of a grow, and rank 1 dies before it has joined.

    If the host is late, rank 0 first proves that it knows the id: the host would ignore its report.
    """

    def drive(run: Run) -> None:
        pids = run.gather_reports()
        arrive(tmp_path, 2, pids[2])  # beginning with the id
        if late_host:
            run.kill(2, signal.SIGSTOP)
        (tmp_path / "grow").touch()
        _wait_until_stopped(pids[1])
        run.kill(1)
        if late_host:
            time.sleep(1)  # rank 0 checks the members every 200 ms
            run.kill(2, signal.SIGCONT)

    arguments = (tmp_path, stopping)
    environment = {"LD_PRELOAD": stopping}
    root, _, joined = launch.outcomes(
        3,
        _grow_with_a_host_from_outside,
        *arguments,
        while_running=drive,
        env=environment,
        timeout=30,
    )
    assert root.ok, root.trace
    assert joined.ok, joined.trace


_REFUSING = """
#include <dlfcn.h>
#include <stddef.h>

typedef void* Pointer;
int refuses_gather, refuses_window;  // whether the next call fails

static void* of_engine(const char* name) { return dlsym(dlopen(ENGINE, RTLD_NOW), name); }

int ncclAllGather(Pointer from, Pointer to, size_t count, int type, Pointer comm, Pointer stream) {
  int (*function)(Pointer, Pointer, size_t, int, Pointer, Pointer) = of_engine("ncclAllGather");
  return refuses_gather ? 2 : function(from, to, count, type, comm, stream);
}

int ncclCommWindowRegister(Pointer comm, Pointer buffer, size_t size, Pointer* window, int flags) {
  int (*function)(Pointer, Pointer, size_t, Pointer*, int) = of_engine("ncclCommWindowRegister");
  return refuses_window ? 2 : function(comm, buffer, size, window, flags);
}
"""


def _register_with_a_refusing_rank(rank: Rank, call: str) -> None:
    comm = rank.comm
    buffer = comm.mem_alloc(1 << 12)
    comm.register_window(buffer).close()
    if rank.rank == 1:
        path = libraries.load("host").path
        ctypes.c_int.in_dll(ctypes.CDLL(path), f"refuses_{call}").value = 1
        with pytest.raises(nccl.NcclSystemError):
            comm.register_window(buffer)
        rank.wait_event("noticed", 0)
        assert comm.closed
    else:
        with pytest.raises(nccl.NcclRemoteError, match="rank 1"):
            comm.register_window(buffer)
        rank.set_event("noticed")


@pytest.mark.parametrize("call", ["gather", "window"])
def test_a_rank_whose_call_fails_is_not_waited_for(
    launch: Launcher, tmp_path: Path, call: str
) -> None:
    """NCCL's call, or the exchange before it, fails on rank 1, and no other rank can see it."""
    engine = libraries.locate("host").path
    folder = os.path.dirname(engine)
    options = ("-Wl,--no-as-needed", engine, f"-Wl,-rpath,{folder}", f'-DENGINE="{engine}"')
    library = compile_to_preload(tmp_path, "refusing", _REFUSING, *options)
    environment = {"PYNCCL_HOSTNCCL_LIBRARY": str(library)}
    launch(2, _register_with_a_refusing_rank, call, env=environment, timeout=60)


def _set_check(check: Callable[[], int]) -> object:
    """Set the function that waits of this process call. Returns what must be kept."""
    function = ctypes.CFUNCTYPE(ctypes.c_int)(check)
    ctypes.CDLL(libraries.load("host").path).hostSetInterruptCheck(function)
    return function


def _stop_in_the_setup(rank: Rank, folder: Path, library: str) -> None:
    """Stop this process between the two steps of its next setup."""
    part = folder / f"part{rank.rank}"
    part.write_text(str(os.getpid()))
    part.rename(folder / f"pid{rank.rank}")
    _stop_in(library, "process_vm_readv")


def _continue_in_a_check(folder: Path, act: Callable[[], None]) -> object:
    """Let rank 1 continue while this rank, asleep, looks for a reason to end its wait for it.

    Args:
        folder: the folder of _stop_in_the_setup().
        act: called afterwards, in the check.
    """
    wait_for(f"{folder}/pid1")
    pid = int((folder / "pid1").read_text())
    checks = 0

    def check() -> int:
        nonlocal checks
        checks += _is_stopped(pid)
        if checks == 2:  # the first check may be in the wait for its first step
            checks += 1
            os.kill(pid, signal.SIGCONT)
            act()
        return 0

    return _set_check(check)


def _fail_after_the_setup(rank: Rank, folder: Path, library: str) -> None:
    """Rank 1 aborts the new communicator while rank 0 is preempted in the wait for it."""
    if rank.rank == 0:
        check = _continue_in_a_check(folder, lambda: wait_for(f"{folder}/failed"))
        comm = rank.communicator()
        assert check
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 1 .* aborted its communicator"):
            comm.all_reduce(np.ones(1))
        return
    _stop_in_the_setup(rank, folder, library)
    comm = rank.communicator()
    comm.all_reduce(np.ones(1), stream=rank.stream())
    comm.abort()
    (folder / "failed").touch()


def test_a_failure_after_the_setup_does_not_end_the_setup(
    launch: Launcher, tmp_path: Path, stopping: str
) -> None:
    environment = {"LD_PRELOAD": stopping, "HOSTNCCL_TUNING": "off"}
    arguments = (tmp_path, stopping)
    launch(2, _fail_after_the_setup, *arguments, env=environment, timeout=60, fresh=True)


def _give_up_during_the_setup(rank: Rank, folder: Path, library: str) -> None:
    """Rank 0 is preempted until rank 1 has completed its setup and the time limit has expired."""
    limit = 3.0
    if rank.rank == 0:
        end = 0.0

        def act() -> None:
            wait_for(f"{folder}/waits")
            time.sleep(max(0.0, end - time.monotonic()))

        wait_for(f"{folder}/pid2")
        check = _continue_in_a_check(folder, act)
        end = time.monotonic() + limit + 1
    else:
        _stop_in_the_setup(rank, folder, library)
        stops = ctypes.c_int.in_dll(ctypes.CDLL(library), "in_process_vm_readv")

        def note() -> int:
            if stops.value:  # it has stopped, and waits for the second step of rank 2
                (folder / "waits").touch()
            return 0

        check = _set_check(note) if rank.rank == 1 else None
    config = nccl.Config(init_timeout=60 if rank.rank else limit)
    with pytest.raises(nccl.NcclTimeoutError, match=r"rank 2 \(pid \d+\) has joined but does not"):
        nccl.Communicator(3, rank.unique_ids[0], rank.rank, config=config, provider="host")
    assert check or rank.rank == 2
    if rank.rank == 0:
        os.kill(int((folder / "pid2").read_text()), signal.SIGCONT)


def test_a_rank_that_has_completed_the_setup_is_not_named(
    launch: Launcher, tmp_path: Path, stopping: str
) -> None:
    environment = {"LD_PRELOAD": stopping, "HOSTNCCL_TUNING": "off"}
    arguments = (tmp_path, stopping)
    launch(3, _give_up_during_the_setup, *arguments, env=environment, timeout=60, fresh=True)


def _give_up_before_an_operation_ends(rank: Rank) -> None:
    """Rank 0 is preempted until its earlier operation is done and the time limit has expired."""
    limit = 0.5
    comm = rank.comm
    comm.all_reduce(np.ones(1))
    if rank.rank == 1:
        rank.wait_event("waits", 0)
        comm.all_reduce(np.ones(1))
        return
    main, stream = threading.get_ident(), rank.stream()
    comm.all_reduce(np.ones(1), stream=stream)
    preempted = False

    def check() -> int:
        nonlocal preempted
        if threading.get_ident() == main and not preempted:
            preempted = True
            rank.set_event("waits")
            wait_until(stream.query)
            time.sleep(limit + 0.5)
        return 0

    held = _set_check(check)
    with comm.shrink([1], config=nccl.Config(init_timeout=limit)) as alone:
        alone.all_reduce(np.ones(1))
    assert held
    assert preempted
    assert not comm.revoked


def test_a_limit_that_expires_after_the_awaited_operation(launch: Launcher) -> None:
    launch(2, _give_up_before_an_operation_ends, fresh=True)


def _split_without_descriptors(rank: Rank) -> float:
    comm = rank.comm
    comm.all_reduce(np.ones(1))
    started = time.monotonic()
    with (  # noqa: PT012
        _free_descriptors(0) if rank.rank == 1 else contextlib.nullcontext(),
        pytest.raises(nccl.NcclSystemError if rank.rank == 1 else nccl.NcclRemoteError),
        nccl.group(),
    ):
        for _ in range(3):
            comm.split(0)
    took = time.monotonic() - started
    if rank.rank == 1:
        rank.wait_event("failed", 0)
    else:
        rank.set_event("failed")
    return took


def test_a_rank_that_gives_up_several_creations_is_not_waited_for(launch: Launcher) -> None:
    assert max(launch(2, _split_without_descriptors, timeout=60, fresh=True)) < _SOON
