"""Runs everything that needs a GPU, the most valuable steps first, within a time limit.

    python -m tests.gpu_day --out FOLDER                    # on a GPU
    python -m tests.gpu_day --out FOLDER --device double    # a dry run: the double, and CPUs

The steps: the machine, the backend's build, NCCL's rules (tests/rules) against the real library,
the tests marked gpu in groups, the benchmark. A step that exceeds its limit is killed with all its
processes. After each step a line is appended to FOLDER/steps.jsonl and report.md is rewritten;
log.txt has the output. Killing this program at any moment loses the current step only.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine, report

_WORKERS = max(2, (os.cpu_count() or 2) // 2)  # ranks share the GPU
_EACH = 60  # seconds per test
_ON_DOUBLE = "2.28"
_LINES = 30  # of the output of a step or a failure, from its end
_LEAST = 5.0  # with fewer seconds left, no step starts
_NOTHING_SELECTED = 5  # pytest's exit status

# The groups of tests, most valuable first. All other tests come last.
_GROUPS: dict[str, tuple[str, ...]] = {
    "operations": (
        "tests/nccl/test_communicator.py",
        "tests/nccl/test_collectives.py",
        "tests/nccl/test_streams.py",
        "tests/nccl/test_groups.py",
        "tests/nccl/test_async.py",
    ),
    "graphs": ("tests/nccl/test_graphs.py", "tests/nccl/test_borrow.py"),
    "failures": (
        "tests/nccl/test_life.py",
        "tests/nccl/test_recover.py",
        "tests/nccl/test_deadlines.py",
        "tests/nccl/test_deadlines_graphs.py",
        "tests/nccl/test_failures.py",
    ),
    "mirror and backend": ("tests/mirror", "tests/c10d"),
    "memory": (
        "tests/nccl/test_windows.py",
        "tests/nccl/test_one_sided.py",
        "tests/nccl/test_memory.py",
        "tests/device",
    ),
}


@dataclass
class Step:
    """A command and its time limit in seconds."""

    name: str
    command: list[str]
    seconds: float
    env: Mapping[str, str] = field(default_factory=dict)
    journal: Path | None = None  # the outcomes of its tests


@dataclass
class Day:
    """The steps and their results."""

    options: argparse.Namespace
    stop: float
    facts: dict[str, Any] = field(default_factory=dict)
    done: list[dict[str, Any]] = field(default_factory=list)

    @property
    def real(self) -> bool:
        return bool(self.options.device == "cuda")

    def left(self) -> float:
        return self.stop - time.monotonic()

    def steps(self, scratch: Path) -> Iterator[Step]:
        """The steps in order. Later ones depend on the result of the first."""
        python = sys.executable
        device = "cuda" if self.real else "cpu"
        yield Step("machine", [python, "-m", "benchmarks.machine", "--device", device], 120)
        yield Step("backend", [python, "-m", "pynccl", "build-backend"], 200)
        yield Step("rules", [python, "-m", "tests.rules.run", *self._rules()], 120)
        known: list[str] = []
        for name, paths in _GROUPS.items():
            yield self._tests(name, [*paths], scratch)
            known += paths
        yield self._tests(
            "other tests", ["tests", *(f"--ignore={path}" for path in known)], scratch
        )
        for ranks in ("1", "2,4"):
            command = [python, "-m", "benchmarks.gpu", "--device", device, "--ranks", ranks]
            total = max(20.0, min(200.0, self.left() - 20))
            command += ["--total", f"{total:.0f}"]
            command += ["--out", str(self.options.out / f"bench-{ranks[0]}")]
            command += [] if self.real else ["--quick"]
            yield Step(f"benchmark, {ranks} ranks", command, total + 20)

    def _rules(self) -> list[str]:
        if not self.real:
            return [_ON_DOUBLE]
        apart = ["--apart"] if len(self.facts.get("gpus", ())) < 2 else []
        return ["--real", "--all", *apart, "--jobs", str(max(4, _WORKERS)), "--seconds", "100"]

    def _tests(self, name: str, paths: list[str], scratch: Path) -> Step:
        journal = scratch / "tests.jsonl"
        double = [] if self.real else ["-p", "tests.doubles.plugin"]
        # Not loadfile, which repeats a test that ends its worker.
        workers = ["-n", str(_WORKERS), "--dist", "load", "--max-worker-restart=30"]
        # A test that hangs ends its worker, which prints the stacks of all threads.
        limit = [f"faulthandler_timeout={_EACH}", "faulthandler_exit_on_timeout=true"]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *double, "-m", "gpu"]
        command += [*workers, "-o", limit[0], "-o", limit[1], "-p", "tests.support.journal"]
        command += ["--continue-on-collection-errors", "-p", "no:cacheprovider"]
        command += ["-k", self.options.k] if self.options.k else []
        command += paths
        env = {"PYNCCL_TEST_LIMIT": str(_EACH - 10), "PYNCCL_JOURNAL": str(journal)}
        if not self.real:
            env["PYNCCL_DOUBLE"] = _ON_DOUBLE
        return Step(name, command, 200, env, journal)

    def run(self) -> int:
        """Run all steps for which there is time, and return the exit status."""
        self.options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="pynccl-day-") as scratch:
            for step in self.steps(Path(scratch)):
                if self.options.steps and not re.search(self.options.steps, step.name):
                    continue
                self._take(_run(step, self.options.out / "log.txt", self.left()))
        return 0 if all(step["status"] == "passed" for step in self.done) else 1

    def _take(self, result: dict[str, Any]) -> None:
        if result["step"] == "machine" and result["status"] == "passed":
            self.facts = json.loads(result["said"][-1])
        self.done.append(result)
        with (self.options.out / "steps.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        new = self.options.out / "report.new"
        new.write_text("\n\n".join(self._report()) + "\n")
        new.replace(self.options.out / "report.md")
        print(f"{result['status']:8} {result['seconds']:6.1f} s  {result['step']}", flush=True)

    def _report(self) -> Iterator[str]:
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        if self.real:
            where = (self.facts.get("gpus") or ["a GPU"])[0]
        else:
            where = "the double and CPUs: a dry run, which proves nothing about NCCL or GPUs"
        yield f"# A day on {where}, {date}"
        if self.facts:
            facts = {**self.facts, "gpus": tuple(self.facts["gpus"])}
            rows = machine.rows(machine.Machine(**facts))
            yield report.table([{"what": what, "which": which} for what, which in rows])
        yield report.table(
            [
                {
                    "step": step["step"],
                    "status": step["status"],
                    "time": f"{step['seconds']:.0f} s",
                    "tests": ", ".join(f"{n} {what}" for what, n in step["tests"].items()),
                }
                for step in self.done
            ]
        )
        for step in self.done:
            if step["status"] != "passed" or step["step"] == "rules":
                yield f"## {step['step']}\n\n```\n" + "\n".join(step["said"]) + "\n```"
            for test, text in step["failures"].items():
                yield f"`{test}`:\n\n```\n{text}\n```"


def _run(step: Step, log: Path, left: float) -> dict[str, Any]:
    """Run a step with its output in the log, and return its line of steps.jsonl."""
    began = time.monotonic()
    result: dict[str, Any] = {
        "step": step.name,
        "seconds": 0.0,
        "tests": {},
        "failures": {},
        "said": [],
    }
    if left < _LEAST:
        return {**result, "status": "not run"}
    with log.open("a") as file:
        file.write(f"== {step.name}\n")
        file.flush()
        start = file.tell()
        process = subprocess.Popen(
            step.command,
            cwd=machine.ROOT,
            env={**os.environ, "PYTHONPATH": _path(), **step.env},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = "failed" if process.wait(min(step.seconds, left)) else "passed"
        except subprocess.TimeoutExpired:
            status = "late"
        finally:
            with contextlib.suppress(ProcessLookupError):  # ranks end with their parents
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with log.open("rb") as file:
        file.seek(start)
        said = machine.scrub(file.read().decode(errors="replace")).splitlines()
    if step.journal:
        result["tests"], result["failures"] = _tests_of(step.journal)
        if process.returncode == _NOTHING_SELECTED:
            status = "passed"
    result["said"] = said if step.name == "rules" else said[-_LINES:]
    result["seconds"] = round(time.monotonic() - began, 1)
    return {**result, "status": status}


def _path() -> str:
    return os.pathsep.join(filter(None, [str(machine.ROOT), os.environ.get("PYTHONPATH")]))


def _tests_of(journal: Path) -> tuple[dict[str, int], dict[str, str]]:
    """The number of tests by outcome, and the texts of the failures."""
    if not journal.exists():
        return {}, {}
    outcomes: dict[str, str] = {}
    failures = {}
    for each in map(json.loads, journal.read_text().splitlines()):
        if outcomes.get(each["test"]) != "failed":  # an error after the test counts
            outcomes[each["test"]] = each["outcome"]
        if each["outcome"] == "failed":
            failures[each["test"]] = "\n".join(machine.scrub(each["text"]).splitlines()[-_LINES:])
    journal.unlink()
    return dict(sorted(Counter(outcomes.values()).items())), failures


def main() -> int:
    """Run all steps. Returns 1 if one failed or was late."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the folder of the report")
    add("--device", choices=("cuda", "double"), default="cuda", help="default: %(default)s")
    add("--seconds", type=float, default=570.0, help="for all steps (default: %(default)g)")
    add("--steps", default="", metavar="REGEX", help="only steps whose name matches")
    add("-k", default="", metavar="EXPRESSION", help="only these tests, as for pytest -k")
    options = parser.parse_args()
    options.out = options.out.resolve()
    return Day(options, time.monotonic() + options.seconds).run()


if __name__ == "__main__":
    sys.exit(main())
