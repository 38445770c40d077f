"""Proves pynccl.testing: results by rank, errors with their rank and traceback, deadlines,
functions of scripts, and no process left behind.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy
import pytest

from pynccl import nccl, testing
from pynccl.testing import LaunchError, Run
from pynccl.testing._launcher import copy_environment
from tests.support.blocking import wait_until
from tests.support.commands import run_ahead, run_command
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_SHORT = 5.0  # seconds of launches in which a rank hangs; the others finish earlier


def _identity(rank: Rank, offset: int) -> tuple[int, int, int]:
    return rank.rank + offset, rank.nranks, os.getpid()


def test_threads_share_a_process(launch: Launcher) -> None:
    values = launch(3, _identity, 0, threads=True)
    assert [value[0] for value in values] == [0, 1, 2]
    assert len({value[2] for value in values}) == 1


def test_processes_are_kept_and_fresh_ones_are_not() -> None:
    with Launcher() as launch:
        first, second, fresh = (
            launch(2, _identity, 0),
            launch(2, _identity, 0),
            launch(2, _identity, 0, fresh=True),
        )
    assert first == second != fresh
    for _, _, pid in [*first, *fresh]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


_left: list[weakref.ref[nccl.Communicator]] = []


def _leave_a_communicator(rank: Rank) -> None:
    cycle: list[object] = [rank.communicator()]
    cycle.append(cycle)
    _left.append(weakref.ref(cast("nccl.Communicator", cycle[0])))


def _closed(_: Rank) -> list[bool]:
    return [(left := each()) is None or left.closed for each in _left]


def test_an_unclosed_communicator_is_closed_after_its_function() -> None:
    with Launcher() as launch:
        launch(2, _leave_a_communicator, threads=True)
        assert launch(2, _closed, threads=True) == [[True, True]] * 2


def test_environment_reaches_the_ranks(launch: Launcher) -> None:
    assert launch(2, _variable, "PYNCCL_TEST", env={"PYNCCL_TEST": "here"}) == ["here", "here"]
    assert launch(1, _variable, "PYNCCL_TEST") == [None]


def _variable(_: Rank, name: str) -> str | None:
    return os.environ.get(name)


class _UnpicklableError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def _raise(rank: Rank, error: Exception | None) -> None:
    if rank.rank == 1:
        if error is None:
            raise _UnpicklableError(1, 2)
        raise error


def test_an_error_names_its_rank_and_is_the_cause(launch: Launcher) -> None:
    with pytest.raises(LaunchError, match="rank 1: KeyError: 'lost'") as caught:
        launch(2, _raise, KeyError("lost"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in _raise" in str(caught.value)
    assert [outcome.ok for outcome in caught.value.outcomes] == [True, False]


def test_an_error_that_cannot_be_pickled_is_reported_as_text(launch: Launcher) -> None:
    with pytest.raises(LaunchError, match="_UnpicklableError: 1 and 2"):
        launch(2, _raise, None, threads=True)


def _die(rank: Rank) -> None:
    if rank.rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_a_death_is_reported_with_its_signal_and_traceback(launch: Launcher) -> None:
    with pytest.raises(LaunchError, match=r"rank 0: killed by SIGSEGV(.|\n)*in _die"):
        launch(2, _die, fresh=True)


def _hang(rank: Rank) -> None:
    if rank.rank == 1:
        threading.Event().wait()


def _join_late(rank: Rank, joins: int) -> None:
    """The ranks from joins on end without a communicator."""
    if rank.rank < joins:
        rank.comm.barrier()


def _hang_or_join(rank: Rank) -> None:
    threading.Event().wait() if rank.rank else rank.comm.barrier()


def _join_and_hang(rank: Rank) -> None:
    rank.comm.barrier()
    _hang(rank)


_COMPILER = """
import threading
def compile_kernel():
    threading.Event().wait()
"""


def _compile(rank: Rank, file: str) -> None:
    if rank.rank == 1:
        scope: dict[str, Any] = {}
        exec(compile(_COMPILER, f"/site-packages/{file}", "exec"), scope)
        scope["compile_kernel"]()


_WHERE = r"1 of 2 ranks failed\n--- rank 1: not done(.|\n)*in _hang"
_NEVER = r"rank 2 never created its communicator \(unique id 0\), for which rank 0 and rank 1 "
_NEVER += r"waited; it had ended\Z"
_COMPILING = "rank 1 was compiling when the time was up .*{}.*; compilation counts against"
# Ranks until the deadline: a function and its arguments, the options of the launch, the ranks that
# succeed, and the text of the error.
_LATE: dict[str, tuple[Callable[..., None], tuple[Any, ...], bool, list[bool], str]] = {
    "hang": (_hang, (), False, [True, False], _WHERE),
    "hang as threads": (_hang, (), True, [True, False], _WHERE),
    "ended before": (_join_late, (2,), False, [False, False, True], _NEVER),
    "ended before, as threads": (_join_late, (2,), True, [False, False, True], _NEVER),
    "does not join": (
        _hang_or_join, (), False, [False, False],
        "rank 1 never created .* rank 0 waited; it was not done",
    ),
    "joined": (_join_and_hang, (), False, [True, False], "rank 1: not done within 5 s"),
    "compiles for Triton": (
        _compile, ("triton/compiler/compiler.py",), False, [True, False],
        _COMPILING.format("Triton"),
    ),
    "compiles the backend": (
        _compile, ("pynccl/c10d/build.py",), False, [True, False],
        _COMPILING.format("build-backend"),
    ),
}  # fmt: skip


def _end_late(case: str) -> tuple[float, LaunchError]:
    """The error of a launch, and its duration."""
    function, arguments, threads, well, _ = _LATE[case]
    with Launcher() as launch:
        # Start the processes and import all that the ranks need: the deadline is for the rest.
        launch(len(well), _join_late, len(well), threads=threads)
        started = time.monotonic()
        with pytest.raises(LaunchError) as caught:
            launch(len(well), function, *arguments, timeout=_SHORT, threads=threads)
        return time.monotonic() - started, caught.value


@pytest.fixture(scope="module")
def late(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The launches, all at once, because they mostly wait."""
    with run_ahead(request, "case", _end_late, at_once=len(_LATE)) as begun:
        yield begun


@pytest.mark.parametrize("case", _LATE)
def test_the_error_of_a_late_launch_explains_it(late: dict[str, Any], case: str) -> None:
    *_, well, pattern = _LATE[case]
    seconds, error = late[case].result()
    assert re.search(pattern, str(error)), error
    assert [outcome.ok for outcome in error.outcomes] == well
    for other in ("never created", "compil"):
        assert (other in str(error)) == (other in pattern)
    assert seconds < 30


def _report_and_wait(rank: Rank) -> None:
    rank.report(rank.rank * 10)
    if rank.rank == 1:
        time.sleep(60)


def test_ranks_report_and_can_be_killed(launch: Launcher) -> None:
    def kill(run: Run) -> None:
        assert run.gather_reports() == [0, 10]
        run.kill(1, signal.SIGTERM)

    outcomes = launch.outcomes(2, _report_and_wait, while_running=kill)
    assert outcomes[0].ok
    assert outcomes[1].died == "killed by SIGTERM"


def _kill_by_a_real_time_signal(_: testing.Rank) -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 6)


def _close_all_descriptors(_: testing.Rank) -> None:
    os.closerange(3, 1000)
    time.sleep(60)


@pytest.mark.parametrize(
    ("function", "died"),
    [
        (_kill_by_a_real_time_signal, f"killed by signal {signal.SIGRTMIN + 6}"),
        (_close_all_descriptors, "killed, because it closed the connection to the launcher"),
    ],
)
def test_an_unusual_end_is_an_outcome(
    function: Callable[[testing.Rank], None], died: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pynccl.testing._launcher._GRACE", 1.0)
    with pytest.raises(LaunchError, match=f"rank 0: {died}"):
        testing.launch(1, function, unique_ids=0)


def _report_much(rank: testing.Rank) -> None:
    rank.report(None)
    rank.report(bytes(1 << 24))


def test_a_death_in_the_middle_of_a_message_is_an_outcome() -> None:
    with testing.Launcher() as launcher, launcher.start(1, _report_much, unique_ids=0) as run:
        run.gather_reports()
        wait_until(lambda: _is_blocked(run))
        with pytest.raises(ValueError, match=r"rank: 1 is not in \[0, 1\)"):
            run.kill(1)
        run.kill(0)
        assert run.outcomes()[0].died == "killed by SIGKILL"


def test_a_rank_that_stops_in_the_middle_of_a_message_is_killed_at_the_deadline() -> None:
    with testing.Launcher() as launcher, launcher.start(1, _report_much, unique_ids=0) as run:
        run.gather_reports()
        wait_until(lambda: _is_blocked(run))
        run.kill(0, signal.SIGSTOP)
        assert run.outcomes(timeout=1.5)[0].died == "not done within 1.5 s"


def _is_blocked(run: Run) -> bool:
    """Whether the only rank waits until the launcher reads its message."""
    stat = Path(f"/proc/{run._processes[0].popen.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


def _large(rank: Rank) -> bytes:
    return bytes(50_000_000)


def test_large_results_arrive_with_a_default_timeout_of_sockets() -> None:
    with testing.Launcher() as launcher:
        socket.setdefaulttimeout(30)
        try:
            assert launcher.launch(1, _large, unique_ids=0) == [bytes(50_000_000)]
        finally:
            socket.setdefaulttimeout(None)


def test_a_process_that_was_killed_is_not_kept() -> None:
    """Even if its rank had ended before the signal, of which it has not died yet."""
    with Launcher() as launch:
        with launch.start(2, _identity, (0,)) as run:
            pids = [outcome.value[2] for outcome in run.outcomes()]
            run.kill(1, signal.SIGCONT)
        assert not {value[2] for value in launch(2, _identity, 0)} & set(pids)


def _die_with_a_child(rank: Rank, pids: Path) -> None:
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    pids.write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_is_noticed_while_a_forked_child_lives(launch: Launcher, tmp_path: Path) -> None:
    pids = tmp_path / "child"
    try:
        (outcome,) = launch.outcomes(1, _die_with_a_child, pids, timeout=20)
    finally:
        os.kill(int(pids.read_text()), signal.SIGKILL)
    assert outcome.died == "killed by SIGKILL"


def test_launches_work_after_a_failure(launch: Launcher) -> None:
    with pytest.raises(LaunchError):
        launch(2, _raise, ValueError("once"))
    assert [value[0] for value in launch(2, _identity, 0)] == [0, 1]


def _sum(rank: testing.Rank, start: float, *, factor: float = 1) -> float:
    values = numpy.array([factor * (start + rank.rank)])
    rank.comm.all_reduce(values)
    return float(values[0])


@pytest.mark.parametrize("threads", [False, True])
def test_launch_returns_results_by_rank(threads: bool) -> None:
    assert testing.launch(3, _sum, (1.0,), {"factor": 2}, threads=threads) == [12.0] * 3


def _world(rank: testing.Rank) -> tuple[str | None, int]:
    torch = pytest.importorskip("torch")
    import pynccl as dist

    dist.init_process_group(
        "host", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return os.environ.get("PYNCCL_TEST"), int(tensor)


def test_the_mirror_can_be_initialized_and_each_rank_has_its_environment(
    launch: Launcher,
) -> None:
    pytest.importorskip("torch")
    env = [{"PYNCCL_TEST": text, "PYTEST_WITH_TORCH": "1"} for text in ("first", "second")]
    with launch.start(2, _world, env=env, fresh=True) as run:
        assert run.results() == [("first", 2), ("second", 2)]


def test_the_environment_is_copied_while_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pytest changes it, while ranks are started on other threads."""
    monkeypatch.setenv("CHANGES", "")
    stop = threading.Event()

    def copy() -> None:
        while not stop.is_set():
            assert copy_environment().get("CHANGES") in {"1", None, ""}

    with ThreadPoolExecutor() as pool:
        copies = pool.submit(copy)
        for _ in range(20_000):
            os.environ["CHANGES"] = "1"
            del os.environ["CHANGES"]
        stop.set()
        copies.result()


def test_mistakes_are_refused_before_a_process_starts() -> None:
    with pytest.raises(TypeError, match="fn at the top level of a module"):
        testing.launch(1, lambda rank: rank.rank)
    with pytest.raises(ValueError, match="world_size is 0"):
        testing.launch(0, _sum)
    with pytest.raises(ValueError, match="env has 1 elements, world_size is 2"):
        testing.launch(2, _sum, env=[{}])
    with pytest.raises(TypeError, match="env: HOSTNCCL_STRICT is 1, it must be a str"):
        testing.launch(2, _sum, env={"HOSTNCCL_STRICT": 1})  # type: ignore[dict-item]


_NAN = float("nan")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"world_size": "2"}, "TypeError: world_size: expected an int, got '2' (str)"),
        ({"world_size": 2.0}, "TypeError: world_size: expected an int, got 2.0 (float)"),
        ({"world_size": True}, "TypeError: world_size: expected an int, got True (bool)"),
        ({"fn": None}, "TypeError: fn: expected a function, got None (NoneType)"),
        ({"args": 3}, "TypeError: args: expected a sequence, such as (argument,), got 3 (int)"),
        ({"args": "ab"}, "TypeError: args: expected a sequence, such as (argument,), got 'ab'"),
        ({"args": {"a": 1}}, "TypeError: args: expected a sequence, such as (argument,), got {'a'"),
        ({"kwargs": ["a"]}, "TypeError: kwargs: expected a mapping, got ['a'] (list)"),
        ({"kwargs": {1: 2}}, "TypeError: kwargs: a name: expected a str, got 1 (int)"),
        ({"provider": None}, "TypeError: provider: expected a str, got None (NoneType)"),
        ({"timeout": "60"}, "TypeError: timeout: expected seconds, got '60' (str)"),
        ({"timeout": _NAN}, "ValueError: timeout is nan, it must be at least 0"),
        ({"grace": None}, "TypeError: grace: expected seconds, got None (NoneType)"),
        ({"grace": -1}, "ValueError: grace is -1, it must be at least 0"),
        ({"unique_ids": 1.5}, "TypeError: unique_ids: expected an int, got 1.5 (float)"),
        ({"unique_ids": -1}, "ValueError: unique_ids is -1, it must be at least 0"),
        ({"env": "A=1"}, "TypeError: env: expected a mapping or a sequence of mappings, got 'A=1'"),
        ({"env": ["A"]}, "TypeError: env: expected a mapping for each rank, got 'A' (str)"),
        ({"env": {1: "a"}}, "TypeError: env: a name: expected a str, got 1 (int)"),
        ({"env": {"A=B": "1"}}, "ValueError: env: 'A=B' cannot be the name of a variable"),
    ],
    ids=str,
)
def test_an_argument_of_a_wrong_type_is_named(wrong: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {"world_size": 1, "fn": _sum, "unique_ids": 0, **wrong}
    with pytest.raises((TypeError, ValueError)) as caught:
        testing.launch(**arguments)
    assert f"{caught.type.__name__}: {caught.value}".startswith(text)


def _return_a_lock(_: testing.Rank) -> object:
    return threading.Lock()


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_rank() -> None:
    with pytest.raises(LaunchError, match=r"rank 0: TypeError: cannot pickle"):
        testing.launch(1, _return_a_lock, unique_ids=0)


def _report_often(rank: testing.Rank, count: int) -> None:
    for number in range(count):
        rank.report(number)
    if rank.rank == 1 and count > 2:
        time.sleep(60)


def _print_and_return(rank: testing.Rank) -> None:
    print(f"printed by rank {rank.rank}")


def test_ranks_print_to_the_output_of_the_caller(tmp_path: Path) -> None:
    """Even to a file, which Python writes in blocks, and before the launch returns."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from pynccl import testing\n"
        "from tests.package import test_testing\n"
        "sys.path.append(Path.cwd())  # which Python ignores, because it is not a string\n"
        "testing.launch(2, test_testing._print_and_return, unique_ids=0, timeout=1e7)\n"
        "print('printed by the caller', flush=True)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = run_command([sys.executable, str(script)], tmp_path, env, timeout=60)
    assert sorted(done.stdout.splitlines()[:2]) == [f"printed by rank {rank}" for rank in range(2)]
    assert done.stdout.splitlines()[2:] == ["printed by the caller"], done.stderr


def test_reports_arrive_immediately() -> None:
    with testing.Launcher() as launcher:
        with launcher.start(2, _report_often, (2,), unique_ids=0) as run:
            reports = list(run.reports())
        for rank in range(2):
            assert [value for reporter, value in reports if reporter == rank] == [0, 1]
        with launcher.start(2, _report_often, (3,), unique_ids=0, timeout=None) as run:
            reports = []
            with pytest.raises(LaunchError, match=r"rank 1: no report within 0\.5 s"):
                reports.extend(run.reports(silence=0.5))


_SCRIPT = """
import sys
from pynccl.testing import launch

class Point:
    def __init__(self, x):
        self.x = x

def double(rank, point):
    return Point(2 * point.x + rank.rank)

def main():
    print([point.x for point in launch(2, double, (Point(5),), unique_ids=0)])

{guard}
    main()
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_functions_of_a_script_are_launched(tmp_path: Path, as_module: bool) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT.format(guard='if __name__ == "__main__":'))
    command = ["-m", "script"] if as_module else ["script.py"]
    done = _python(tmp_path, *command)
    assert done.stdout == "[10, 11]\n", done.stderr


def test_the_error_of_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT.format(guard="if True:"))
    done = _python(tmp_path, "script.py")
    assert done.returncode == 1
    assert 'put the call under if __name__ == "__main__":' in done.stderr


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return run_command([sys.executable, *arguments], folder, env, timeout=60)


_LEFT = """
import os, signal, time
from pynccl.testing import launch

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job of a shell

def wait(rank):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)

if __name__ == "__main__":
    launch(2, wait, unique_ids=0)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_rank_outlives_the_process_that_launched_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "script.py").write_text(_LEFT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        assert launcher.stdout
        pids = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.send_signal(number)
        launcher.wait(20)
    wait_until(lambda: not any(map(_is_alive, pids)))


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
