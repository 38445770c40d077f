"""Proves that pynccl doctor reports no problem on a working machine, and names the problem
otherwise: libraries that are missing or hang, ranks that hang, die or return wrong results,
misspelled variables. It leaves no process behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pynccl.testing import Rank
from pynccl.tools.doctor import Diagnosis, Finding, diagnose
from pynccl.tools.doctor import ranks as doctor_ranks
from pynccl.tools.doctor.library import describe
from tests.support.commands import run_command

_DEADLINE = 90  # seconds; a loaded machine takes long to start Python
_PATIENCE = "30"  # of the command, for the same reason
_DOCTOR = [sys.executable, "-m", "pynccl", "doctor", "--timeout", _PATIENCE]
_VARIABLES = ("NCCL_", "HOSTNCCL_", "PYNCCL_", "CUDA_VISIBLE", "RANK", "WORLD_SIZE", "MASTER_")


def _environment(**more: str) -> dict[str, str]:
    """The environment of this process, without the variables set by the tests."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_VARIABLES)}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/", **more}


def _run(env: Mapping[str, str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit status, the findings by text, and the standard error output."""
    done = run_command([*_DOCTOR, "--json", *arguments], Path("/"), env, _DEADLINE)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def _problems(found: dict[str, Any]) -> list[str]:
    return [one["text"] for one in found["findings"] if one["level"] == "problem"]


def test_a_working_machine() -> None:
    done = run_command([*_DOCTOR, "--provider", "host"], Path("/"), _environment(), _DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for heading in ("packages", "provider host", "machine", "environment", "2 ranks over host"):
        assert heading in lines
    assert "all_reduce, send and recv of 1 MiB are correct between 2 processes" in done.stdout
    assert re.fullmatch(r"no problems \(\d+\.\d s\)", lines[-1])


def test_a_missing_library() -> None:
    code, found, _ = _run(_environment(PYNCCL_NCCL_LIBRARY="/nowhere/libnccl.so.2"))
    assert code == 1
    (problem,) = [one for one in found["findings"] if one["level"] == "problem"]
    assert "/nowhere/libnccl.so.2: cannot open shared object file" in problem["text"]
    assert problem["advice"].startswith("unset PYNCCL_NCCL_LIBRARY")


@pytest.mark.parametrize("mistake", ["hang", "crash"])
def test_a_library_that_cannot_be_loaded(tmp_path: Path, mistake: str) -> None:
    """It is loaded in a separate process, which is terminated."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    body = {"hang": "sleep(600);", "crash": "*(volatile int*)0 = 1;"}[mistake]
    source = tmp_path / "bad.c"
    source.write_text(
        f"#include <unistd.h>\n__attribute__((constructor)) void start(void) {{ {body} }}\n"
    )
    library = tmp_path / "libnccl.so.2"
    subprocess.run(
        [compiler, "-w", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60
    )
    env = _environment(PYNCCL_NCCL_LIBRARY=str(library))
    began = time.monotonic()
    limit = {"hang": "5", "crash": _PATIENCE}[mistake]
    code, found, _ = _run(env, "--timeout", limit, "--provider", "cuda")
    assert code == 1
    how = {"hang": "not done within 5 s", "crash": "killed by SIGSEGV"}[mistake]
    expected = f"a process that loads the libraries failed: {how}"
    assert expected in _problems(found)
    assert time.monotonic() - began < 60
    assert not _processes_with(str(library))


def _processes_with(text: str) -> list[int]:
    """The processes that have mapped a file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "maps").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_variables() -> None:
    env = _environment(
        HOSTNCCL_STRIKT="1",
        HOSTNCCL_STRICT="1",
        PYNCCL_TIMEOUT="5",
        PYNCCL_BENCH_SECONDS="5",
        RANK="0",
    )
    code, found, _ = _run(env)
    assert code == 1
    said = {one["text"].partition("=")[0]: one for one in found["findings"]}
    assert said["HOSTNCCL_STRIKT"]["level"] == "problem"
    assert said["HOSTNCCL_STRIKT"]["advice"].startswith("did you mean HOSTNCCL_STRICT (")
    assert "a parameter of hostnccl" in said["HOSTNCCL_STRICT"]["text"]
    assert "time limit of an operation" in said["PYNCCL_TIMEOUT"]["text"]
    assert said["PYNCCL_BENCH_SECONDS"]["text"].endswith(" - used by pynccl's own tests")
    assert len(_problems(found)) == 1
    assert any(
        text.startswith("RANK set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT") for text in said
    )


def test_a_value_that_hostnccl_rejects() -> None:
    code, found, _ = _run(_environment(HOSTNCCL_SPIN_US="-3"), "--provider", "host")
    assert code == 1
    of_library, of_ranks = _problems(found)
    assert "HOSTNCCL_SPIN_US=-3 is not a whole number" in of_library
    assert of_ranks.startswith("ranks 0 and 1 failed after starting: NcclInvalidArgumentError")


def test_an_unknown_provider() -> None:
    code, found, _ = _run(_environment(PYNCCL_PROVIDER="gpu"), "--provider", "host")
    assert code == 1
    assert _problems(found) == ["PYNCCL_PROVIDER=gpu is not one of cuda, host"]


def test_wrong_arguments() -> None:
    for wrong in ({"provider": "gpu"}, {"timeout": 0.0}, {"timeout": float("nan")}):
        name, value = next(iter(wrong.items()))
        with pytest.raises(ValueError, match=f"^{name}: {value!r}"):
            diagnose(**wrong)  # type: ignore[arg-type]
    done = run_command([*_DOCTOR, "--timeout", "-1"], Path("/"), _environment(), _DEADLINE)
    assert done.returncode == 2
    assert done.stderr == "pynccl doctor: timeout: -1.0 is not above 0\n"


# Programs of faulty ranks, which replace the usual one.


def _hang(rank: Rank) -> float:
    rank.report("starting")
    Path(os.environ["DOCTOR_TEST_FOLDER"], str(rank.rank)).write_text(str(os.getpid()))
    if rank.rank == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGUSR1})
        time.sleep(600)
    return 0.0


def _die(rank: Rank) -> float:
    rank.report("starting")
    comm = rank.communicator()
    rank.report("creating a communicator")
    if rank.rank == 0:
        os.kill(os.getpid(), getattr(signal, os.environ["DOCTOR_TEST_SIGNAL"]))
    comm.barrier()
    return 0.0


def _nonsense(rank: Rank) -> float:
    doctor_ranks._Transfer.write = (  # type: ignore[method-assign]
        lambda self, buffer, value, write=doctor_ranks._Transfer.write: write(
            self, buffer, value * 2
        )
    )
    return doctor_ranks.exchange(rank)


def _with(program: doctor_ranks.Program, timeout: float = 30) -> list[Finding]:
    return [
        finding
        for finding in doctor_ranks.check(describe("host"), timeout, program)
        if finding.level == "problem"
    ]


def test_a_rank_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCTOR_TEST_FOLDER", str(tmp_path))
    began = time.monotonic()
    (problem,) = _with(_hang, timeout=8)
    assert time.monotonic() - began < 60
    assert re.fullmatch(
        r"rank 1 made no progress for 8 s after starting and was ended, in _hang "
        r"\(test_doctor\.py:\d+\)",
        problem.text,
    )
    assert problem.area == "2 ranks over host"
    for rank in (0, 1):
        assert not Path("/proc", (tmp_path / str(rank)).read_text()).exists()


@pytest.mark.parametrize(
    ("name", "advice"), [("SIGBUS", "shared memory"), ("SIGKILL", "memory limit"), ("SIGSEGV", "")]
)
def test_a_rank_that_dies(monkeypatch: pytest.MonkeyPatch, name: str, advice: str) -> None:
    """The report names the rank that died, not the rank that was waiting for it."""
    monkeypatch.setenv("DOCTOR_TEST_SIGNAL", name)
    (problem,) = _with(_die)
    expected = f"rank 0 died after creating a communicator: its process was killed by {name}"
    assert problem.text == expected
    assert advice in problem.advice


def test_wrong_results() -> None:
    (problem,) = _with(_nonsense)
    assert problem.text.startswith(
        "ranks 0 and 1 failed after creating a communicator: RuntimeError:"
    )
    assert "all_reduce returned wrong data: 262144 of 262144 elements are not 3" in problem.text


def test_output_of_the_ranks(tmp_path: Path) -> None:
    """The report has the standard output for itself, even if NCCL prints (NCCL_DEBUG=INFO)."""
    talk = "import os, sys\nif '-c' in sys.orig_argv: os.write(1, b'on the standard output\\n')\n"
    (tmp_path / "sitecustomize.py").write_text(talk)
    env = _environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    code, found, errors = _run(env, "--provider", "host")
    assert code == 0, found
    assert errors.count("on the standard output") == 3  # of the library's process and two ranks


def test_the_report() -> None:
    about = {"pynccl": "1", "python": "3", "platform": "Linux"}
    good, bad = Finding("machine", "ok", "two"), Finding("machine", "problem", "none", "buy one")
    one = Diagnosis(about, [good, bad], 1.26)
    assert one.text() == (
        "pynccl 1, Python 3, Linux\n\nmachine\n  ok       two\n  problem  none\n"
        "           -> buy one\n\n1 problem (1.3 s)"
    )
    assert Diagnosis(about, [bad, bad], 1).text().endswith("2 problems (1.0 s)")
    assert Diagnosis(about, [good], 1).json()["ok"] is True
    assert one.json()["ok"] is False
