"""Proves that a waiting rank releases resources: the GIL is free, the CPU is idle, and abort() from
another thread ends the wait; and that waits beside CPU-bound processes are short.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ranks import busy_processes
from pynccl import nccl
from tests.hostnccl.test_tuning import FAR, content
from tests.support.blocking import Blocked, wait_until_blocked
from tests.support.cpp import compile_to_preload, compile_with_parts, compiler
from tests.support.launcher import Launcher
from tests.support.rank import Rank, wait_for
from tests.support.tier import FULL

_UNBLOCKED_WITHIN = 10.0  # seconds, on a busy machine


def _call(rank: Rank, comm: nccl.Communicator, what: str) -> None:
    """A call that lasts until the other rank makes it."""
    array = np.zeros(1_000_003 if what.startswith("large") else 3)
    match what.rsplit(maxsplit=1)[-1]:
        case "all_reduce":
            comm.all_reduce(array)
        case "exchange":
            with nccl.group():
                comm.send(array, 1 - rank.rank)
                comm.recv(array.copy(), 1 - rank.rank)
        case "stream":
            stream = rank.stream()
            comm.all_reduce(array, stream=stream)
            stream.synchronize()
        case "split":
            comm.split(0).close()


_WAITS = ("all_reduce", "large all_reduce", "exchange", "large exchange", "stream", "split")


def _while_waiting(rank: Rank, what: str, measured: str) -> tuple[float, int] | None:
    """The results of _cpu_seconds() and _progress() on rank 0 while it waits for the other rank,
    which joins afterwards.
    """
    comm = None if what == "init" else rank.comm
    found: list[tuple[float, int]] = []
    if comm:
        comm.all_reduce(np.zeros(1))
    if rank.rank == 1:
        wait_for(measured)

    def measure() -> None:
        try:
            found.append((_cpu_seconds(), _progress()))
        finally:
            Path(measured).touch()

    watcher = threading.Thread(target=measure)
    if rank.rank == 0:
        watcher.start()
    if comm:
        _call(rank, comm, what)
    else:
        _ = rank.comm
    if rank.rank == 1:
        return None
    watcher.join()
    return found[0]


def _cpu_seconds() -> float:
    """CPU time instead of elapsed time, which a busy machine does not increase."""
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(0.5)
    return time.process_time() - before


def _progress() -> int:
    """The number of 1 ms steps of another thread while the call waits, up to 100."""
    steps = 0
    while steps < 100:
        time.sleep(0.001)
        steps += 1
    return steps


@pytest.mark.parametrize("what", [*_WAITS, "init"])
def test_a_waiting_rank_uses_no_cpu_and_releases_the_gil(
    launch: Launcher, what: str, tmp_path: Path
) -> None:
    used, steps = launch(2, _while_waiting, what, str(tmp_path / "measured"))[0]
    assert used < 0.1, f"{used:.3f} s of CPU in 0.5 s"
    assert steps == 100


def _abort(rank: Rank, what: str, aborted: str) -> float:
    comm = rank.comm
    comm.all_reduce(np.zeros(1))
    if rank.rank == 1:
        rank.report("here")
        wait_for(aborted)  # without the call that rank 0 waits for
        comm.abort()
        return 0.0
    moments, caller = [], threading.current_thread()

    def abort() -> None:
        wait_until_blocked(caller)
        moments.append(time.monotonic())
        comm.abort()

    aborter = threading.Thread(target=abort)
    aborter.start()
    with pytest.raises(nccl.NcclError):
        _call(rank, comm, what)
    ended = time.monotonic()
    aborter.join()
    Path(aborted).touch()
    assert comm.closed
    comm.abort()
    comm.close()
    rank.report("aborted")
    return ended - moments[0]


@pytest.mark.parametrize(
    ("what", "threads"),
    [
        (what, threads)
        for number, what in enumerate(_WAITS)
        for threads in (False, True)
        if FULL or threads == bool(number % 2)
    ],
)
def test_abort_frees_a_blocked_thread(
    launch: Launcher, what: str, threads: bool, tmp_path: Path
) -> None:
    took = launch(2, _abort, what, str(tmp_path / "aborted"), threads=threads)[0]
    assert took < _UNBLOCKED_WITHIN


def _end_early(rank: Rank, end: str) -> str:
    comm = rank.comm
    comm.all_reduce(np.zeros(1))
    if rank.rank == 1:
        getattr(comm, end)()
        return ""
    with pytest.raises(nccl.NcclRemoteError) as caught:
        comm.all_reduce(np.zeros(3))
    return str(caught.value)


@pytest.mark.parametrize("end", ["abort", "close", "revoke"])
def test_other_ranks_get_an_error_that_names_the_rank(launch: Launcher, end: str) -> None:
    texts = launch(3, _end_early, end)
    assert "rank 1" in texts[0]
    assert "rank 1" in texts[2]


def _exchange(rank: Rank, cpus: list[int]) -> float:
    """The median time of an exchange of four bytes."""
    os.sched_setaffinity(0, cpus)
    comm, array, taken = rank.comm, np.ones(1, np.float32), []
    for _ in range(500):
        began = time.perf_counter()
        for sender in range(2):
            comm.send(array, 1 - sender) if rank.rank == sender else comm.recv(array, sender)
        taken.append(time.perf_counter() - began)
    assert os.sched_getaffinity(0) == set(cpus)
    return statistics.median(taken)


@pytest.mark.serial
def test_waits_are_short_beside_busy_processes(launch: Launcher) -> None:
    """Waits that yield their CPU to these processes take 100 times as long as those that sleep."""
    cpus, tried = sorted(os.sched_getaffinity(0))[:2], []
    with busy_processes(2 * len(cpus), cpus):
        for _ in range(3):
            found = {
                spins: launch(2, _exchange, cpus, env={"HOSTNCCL_SPIN_US": spins}, fresh=True)[0]
                for spins in ("0", "1000")
            }
            tried.append(found)
            if found["1000"] < 10 * found["0"]:
                return
    raise AssertionError(f"seconds by HOSTNCCL_SPIN_US: {tried}")


def _sleeps_per_call(rank: Rank, cpus: list[int]) -> float:
    os.sched_setaffinity(0, cpus[rank.rank : rank.rank + 1])
    comm, array, calls = rank.comm, np.ones(1, np.float32), 20_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(calls):
        comm.all_reduce(array)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before) / calls


@pytest.mark.serial
def test_ranks_with_cpus_of_their_own_do_not_sleep(launch: Launcher) -> None:
    """Beside busy processes: ranks that always slept would do so in one of 10 to 70 calls."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("one CPU")
    with busy_processes(len(cpus), cpus):
        found = [max(launch(2, _sleeps_per_call, cpus, fresh=True)) for _ in range(5)]
    assert statistics.median(found) < 0.005, found


def test_waits_while_others_take_the_cpu(tmp_path: Path) -> None:
    """Whether they spin, yield or sleep depends on where the awaited ranks are."""
    program = tmp_path / "contended_waits"
    own = [Path(__file__).with_name("contended_waits.cpp")]
    parts = [f"base/{name}.cpp" for name in ("flag", "tuning", "params", "process", "error")]
    compile_with_parts(compiler(), program, own, parts, ["-pthread"])
    for limit in (1000, 20):
        environment = {**os.environ, "HOSTNCCL_SPIN_US": str(limit)}
        printed = subprocess.run(
            [program], check=True, capture_output=True, text=True, timeout=60, env=environment
        ).stdout
        spins, yields, us = {}, {}, {}
        for name, *numbers in map(str.split, printed.splitlines()):
            spins[name], yields[name], us[name] = map(float, numbers)
        for name in ("calm", "calm_again", "calm_after_a_stop"):
            assert spins[name] > 64 * (yields[name] - 1) > 0, printed
            assert limit <= us[name] < limit + 10, printed
        assert yields["lost_by_yield"] == 1, printed
        for name in ("not_apart", "oversubscribed", "lost_by_spin"):
            assert (spins[name], yields[name]) == (0, 0), printed
        again = "oversubscribed_again"
        assert (spins[again], yields[again]) == (64, 0), printed
        for name in ("another_process_runs", "it_still_runs"):
            assert yields[name] == 1, printed
        for name in ("a_rank_copies", "a_rank_copies_again"):
            assert yields[name] == (limit + 301) // 302, printed
        assert spins["apart"] > 64 > yields["apart"] == 0, printed
        assert min(limit, 50) <= us["apart"] < min(limit, 50) + 10, printed
        before, after = spins["slice"], yields["slice"]
        assert after == min(before, 100), printed  # both 0 before Linux 6.12


_PLANNED_CPUS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int cpu;                      // of this process
int runnable = 100;           // threads of the machine
int loses;                    // whether the next spin after a yield takes 200 ms
int allowed = 15;             // CPUs, as bits
int requested;                // in the last call of sched_setaffinity
int placements;               // calls of sched_getcpu
int slow;                     // whether each reading of the clock adds a microsecond at most
int slow_after_loss;          // whether that begins with the next such spin
static long lost;             // seconds / 5
static _Thread_local int readings;  // of the clock until that spin has ended

int sched_getcpu(void) {
  __atomic_fetch_add(&placements, 1, __ATOMIC_RELAXED);
  return cpu;
}

int sched_getaffinity(pid_t thread, size_t size, cpu_set_t* set) {
  memset(set, 0, size);
  memcpy(set, &allowed, sizeof allowed);
  return 0;
}

long sysconf(int name) {
  static long (*function)(int);
  if (!function) function = dlsym(RTLD_NEXT, "sysconf");
  return name == _SC_NPROCESSORS_ONLN ? __builtin_popcount(allowed & 15) : function(name);
}

int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t* set) {
  memcpy(&requested, set, sizeof requested);
  allowed = requested & 15;
  if (!(allowed >> cpu & 1)) cpu = __builtin_ctz(allowed);
  return 0;
}

int open(const char* path, int flags, ...) {
  if (strcmp(path, "/proc/loadavg") == 0) {
    const int file = memfd_create("loadavg", MFD_CLOEXEC);
    dprintf(file, "0.00 0.00 0.00 %d/1000 1\\n", runnable);
    lseek(file, 0, SEEK_SET);
    return file;
  }
  va_list arguments;
  va_start(arguments, flags);
  const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int sched_yield(void) {
  if (loses) readings = 2;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*function)(clockid_t, struct timespec*);
  if (!function) function = dlsym(RTLD_NEXT, "clock_gettime");
  const int loss = readings && --readings == 0 && loses;
  if (loss) {
    __atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
    loses = 0;
  }
  const int result = function(clock, now);
  if (clock == CLOCK_MONOTONIC) {
    static _Thread_local long last;
    const long second = 1000000000;
    long moment = now->tv_sec * second + now->tv_nsec + lost * second / 5;
    if (slow && last && last + 1000 < moment) moment = last + 1000;
    last = moment;
    now->tv_sec = moment / second;
    now->tv_nsec = moment % second;
  }
  if (loss && slow_after_loss) slow = 1;
  return result;
}

// A deadline of this clock has passed for the kernel if time is slow: sleep for the difference.
int clock_nanosleep(clockid_t clock, int flags, const struct timespec* end, struct timespec* left) {
  static int (*function)(clockid_t, int, const struct timespec*, struct timespec*);
  if (!function) function = dlsym(RTLD_NEXT, "clock_nanosleep");
  if (clock != CLOCK_MONOTONIC || flags != TIMER_ABSTIME) return function(clock, flags, end, left);
  struct timespec now;
  clock_gettime(clock, &now);
  const long second = 1000000000;
  const long ns = (end->tv_sec - now.tv_sec) * second + end->tv_nsec - now.tv_nsec;
  const struct timespec rest = {ns / second, ns % second};
  return ns <= 0 ? 0 : function(clock, 0, &rest, left);
}
"""


class _PlannedCpus:
    """The preloaded library of a rank on this CPU."""

    def __init__(self, rank: Rank, library: str, cpu: int) -> None:
        self._rank = rank
        self._library = ctypes.CDLL(library)
        self.set("cpu", cpu)

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, name).value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self._library, name).value = value

    def lose_slice(self, comm: nccl.Communicator, *, recent: bool = False) -> None:
        """Let the waits of rank 0 find that others compete for the CPUs, for at least 100 ms.

        Args:
            comm: the communicator of these waits.
            recent: whether time then is slow on rank 0, which otherwise forgets it.
        """
        goes_on = np.ones(1)
        self.set("slow_after_loss", recent)
        if self._rank.rank == 0:
            time.sleep(0.01)  # rank 1 waits, and publishes its CPU
        comm.all_reduce(goes_on)
        self.set("loses", self._rank.rank == 0)
        while goes_on[0]:
            if self._rank.rank == 1:
                time.sleep(0.002)  # rank 0 waits
                goes_on[0] = 0
            comm.all_reduce(goes_on)
            goes_on[0] = self.get("loses")
            comm.all_reduce(goes_on)


@pytest.fixture(scope="module")
def planned_cpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(compile_to_preload(tmp_path_factory.mktemp("planned"), "cpus", _PLANNED_CPUS))


def _send_late(rank: Rank) -> None:
    """Rank 0 waits for 20 messages, each for longer than it spins."""
    for _ in range(20):
        if rank.rank == 0:
            rank.comm.recv(np.zeros(1), 1)
        else:
            time.sleep(0.002)
            rank.comm.send(np.zeros(1), 0)


def _receive_late_messages(rank: Rank, library: str) -> int:
    cpus = _PlannedCpus(rank, library, rank.rank)
    cpus.lose_slice(rank.comm)
    before = cpus.get("placements")
    _send_late(rank)
    return cpus.get("placements") - before


def test_a_rank_that_has_lost_a_time_slice_spins_for_others_that_have_not(
    launch: Launcher, planned_cpus: str
) -> None:
    """It would have to sleep if it did not know their CPUs."""
    env = {"LD_PRELOAD": planned_cpus}
    assert launch(2, _receive_late_messages, planned_cpus, env=env, fresh=True)[0] > 40


def _share_a_cpu(
    rank: Rank, library: str, allowed: int, contended: bool
) -> tuple[list[float], int, int]:
    """The CPUs of all ranks once they differ. At first they are the same."""
    cpus, found = _PlannedCpus(rank, library, 1), np.ones((rank.world_size, 1))
    cpus.set("allowed", allowed)
    cpus.set("slow", not contended)  # even if others do compete
    if contended:
        cpus.lose_slice(rank.comm)
    while len(set(found[:, 0])) == 1:
        if rank.rank == 1:
            time.sleep(0.002)  # the others wait
        rank.comm.all_gather(np.full(1, float(cpus.get("cpu"))), out=found)
    return found[:, 0].tolist(), cpus.get("allowed"), cpus.get("requested")


@pytest.mark.parametrize(("allowed", "restored"), [(0b1111, -1), (0b1110, 0b1110)])
@pytest.mark.parametrize("contended", [False, True])
def test_a_rank_leaves_the_cpu_of_another_one(
    launch: Launcher, planned_cpus: str, allowed: int, restored: int, contended: bool
) -> None:
    """A thread that may run on all CPUs of its cgroup still may when the cgroup gets more."""
    env = {"LD_PRELOAD": planned_cpus}
    ranks = launch(2, _share_a_cpu, planned_cpus, allowed, contended, env=env, fresh=True)
    assert all(allowed >> int(cpu) & 1 for cpu in ranks[0][0]), ranks
    assert [after for _, after, _ in ranks] == [allowed, allowed]
    assert {last for _, _, last in ranks} - {0} == {restored}, ranks


def test_oversubscribed_ranks_spread_over_the_cpus(launch: Launcher, planned_cpus: str) -> None:
    """The scheduler may leave three of four on one CPU."""
    env = {"LD_PRELOAD": planned_cpus}
    ranks = launch(3, _share_a_cpu, planned_cpus, 0b110, False, env=env, fresh=True)
    assert set(ranks[0][0]) == {1, 2}


def _share_a_cpu_beside_an_idle_rank(rank: Rank, library: str, runnable: int) -> int:
    """Three ranks have two CPUs: the first two share one, and the third is idle on the other."""
    cpus = _PlannedCpus(rank, library, rank.rank + 1)
    cpus.set("allowed", 0b1010)
    cpus.set("slow", 1)
    for late in range(15):
        if rank.rank == late % rank.world_size:
            time.sleep(0.002)  # the others wait, and publish their CPUs
        rank.comm.all_reduce(np.zeros(1))
    cpus.set("runnable", runnable)
    if rank.rank == 1:
        cpus.set("cpu", 1)
    for _ in range(20):
        if rank.rank == 0:
            time.sleep(0.002)
            rank.comm.send(np.zeros(1), 1)
        elif rank.rank == 1:
            rank.comm.recv(np.zeros(1), 0)
    rank.comm.barrier()
    return cpus.get("cpu")


@pytest.mark.parametrize(("runnable", "found"), [(2, 3), (3, 1)])
def test_oversubscribed_ranks_find_an_idle_cpu(
    launch: Launcher, planned_cpus: str, runnable: int, found: int
) -> None:
    env = {"LD_PRELOAD": planned_cpus}
    arguments = planned_cpus, runnable
    assert launch(3, _share_a_cpu_beside_an_idle_rank, *arguments, env=env, fresh=True)[1] == found


def _oversubscribe(rank: Rank, library: str, contended: bool) -> int:
    cpus = _PlannedCpus(rank, library, 1)
    cpus.set("allowed", 0b10)
    cpus.set("slow", not contended)
    if contended:
        cpus.lose_slice(rank.comm, recent=True)
        if rank.rank != 2:
            _send_late(rank)  # rank 0 publishes the loss
        cpus.set("slow", 0)
    rank.comm.barrier()
    cpus.set("allowed", 0b110)
    for late in range(20):
        if rank.rank == late % rank.world_size:
            time.sleep(0.002)  # the others wait
        rank.comm.all_reduce(np.zeros(1))
        if contended:
            time.sleep(0.1)  # calm again after a second
    return cpus.get("requested")


@pytest.mark.parametrize(("spins", "contended"), [("0", False), ("1000", True)])
def test_oversubscribed_ranks_stay_on_their_cpus(
    launch: Launcher, planned_cpus: str, spins: str, contended: bool
) -> None:
    """If they do not spin, and if others have recently competed for the CPUs."""
    env = {"LD_PRELOAD": planned_cpus, "HOSTNCCL_SPIN_US": spins}
    ranks = launch(3, _oversubscribe, planned_cpus, contended, env=env, fresh=True)
    assert ranks == [0, 0, 0]


def _wait_for_own_operation(rank: Rank, library: str) -> int:
    """Whether rank 0 changes its CPU, on which rank 2 has waited, for it."""
    cpus, comm = _PlannedCpus(rank, library, 0 if rank.rank == 1 else 1), rank.comm
    other = comm.split(0)
    assert other is not None
    if rank.rank == 0:
        time.sleep(0.01)  # the others wait, and publish their CPUs
    comm.all_reduce(np.zeros(1))
    if rank.rank == 2:
        cpus.set("cpu", 2)
    if rank.rank != 0:
        cpus.lose_slice(other)
        rank.wait_event("waits", 0)
        if rank.rank == 1:
            comm.send(np.zeros(1), 0)
        comm.all_reduce(np.zeros(1))
        other.close()
        return 0
    first = Blocked(lambda: comm.recv(np.zeros(1), 1))
    first.wait()
    cpus.lose_slice(other)
    cpus.set("cpu", 1)
    cpus.set("requested", 0)
    second = Blocked(lambda: comm.all_reduce(np.zeros(1)))
    second.wait()
    found = cpus.get("requested")
    rank.set_event("waits")
    first.end(None)
    second.end(None)
    other.close()
    return found


def test_a_thread_does_not_move_for_an_earlier_operation(
    launch: Launcher, planned_cpus: str
) -> None:
    """While others compete for the CPUs: the thread that runs it may be on any CPU."""
    env = {"LD_PRELOAD": planned_cpus}
    assert launch(3, _wait_for_own_operation, planned_cpus, env=env, fresh=True)[0] == 0


def _reads_directly(
    rank: Rank, library: str, operation: str, shared: bool, threshold: int
) -> list[bool] | None:
    """Whether rank 0 fills one cell of a ring, or no staging buffer, only: of a size below the
    threshold and of the threshold, before others compete for the CPUs, and then. None if ranks
    cannot read others' memory.
    """
    cpus = _PlannedCpus(rank, library, 1 if shared else rank.rank)
    cpus.set("allowed", 0b10 if shared else 0b11)
    cpus.set("slow", True)  # no losses but the planned one, and no long time since that one
    if rank.comm.explain("broadcast", 1 << 30).algorithm != "direct":
        return None
    found = []
    for number in range(4):
        contended = number >= 2
        token = np.zeros(1)
        message = np.full(threshold - 1 + number % 2, rank.rank == 0)
        with rank.communicator(1 + number, provider="host") as comm:
            if contended:
                cpus.set("slow", False)
                cpus.lose_slice(comm, recent=True)
                cpus.set("slow", True)
            for _ in range(2):
                comm.all_reduce(token)  # in both staging buffers
            before = comm.memory_stats().total
            if operation == "broadcast":
                comm.broadcast(message, root=0)
            elif rank.rank == 0:
                comm.send(message, 1)
            else:
                comm.recv(message, 0)
            assert message.all()
            found.append(comm.memory_stats().total - before < 32 << 10)
    return found


@pytest.mark.parametrize(
    "case",
    [("send", True, 512 << 10), ("send", False, 16 << 20), ("broadcast", True, 4 << 20)],
    ids=["send", "send with CPUs of their own", "broadcast"],
)
def test_data_is_read_at_once_while_others_take_the_cpu(
    launch: Launcher, tmp_path: Path, planned_cpus: str, case: tuple[str, bool, int]
) -> None:
    """If it is of a size that is staged otherwise. Ranks that share a CPU begin with less."""
    file = tmp_path / "tuning"
    file.touch(0o600)
    file.write_bytes(content(FAR))  # on such a machine, even larger messages are staged
    env = {"HOSTNCCL_TUNING": "on", "HOSTNCCL_TUNING_FILE": str(file), "LD_PRELOAD": planned_cpus}
    found = launch(2, _reads_directly, planned_cpus, *case, env=env, fresh=True, ids=5)[0]
    if found is None:
        pytest.skip("ranks cannot read each other's memory here")
    assert found == [False, False, False, True]


def _broadcast_without_the_window_of_the_root(rank: Rank, library: str) -> list[int]:
    """The values received. The root chooses direct reads, the others try their window."""
    cpus = _PlannedCpus(rank, library, 1)
    cpus.set("allowed", 0b10)
    with rank.communicator(1, provider="host") as comm:
        window = comm.register_window(comm.mem_alloc(8192))
        cpus.lose_slice(comm, recent=True)
        cpus.set("slow", True)
        if rank.rank == 0:
            window.close()
        found, total = [], np.ones(1)
        for value in range(3):
            message = np.full(4 << 20, value if rank.rank == 0 else 99, np.uint8)
            comm.broadcast(message, root=0)
            found += [int(message.min()), int(message.max())]
            message[:] = 77
            comm.all_reduce(total)
        window.close()
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_root_chooses_for_others_that_have_windows(
    launch: Launcher, planned_cpus: str, ranks: int
) -> None:
    env = {"HOSTNCCL_TUNING": "off", "LD_PRELOAD": planned_cpus}
    body = _broadcast_without_the_window_of_the_root
    found = launch(ranks, body, planned_cpus, env=env, fresh=True, ids=2)
    assert found == [[0, 0, 1, 1, 2, 2]] * ranks
