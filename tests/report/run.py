"""Runs the tests that need a GPU within a fixed time, and writes a report of them.

    python -m tests.report.run                 # on GPUs, to docs/results
    python -m tests.report.run --device cpu    # the same tests over hostnccl, to build/results

Each test has a deadline, and all together have one. A test that hangs is ended with its processes
and reported, and the others still run; tests without time are reported too. The exit status is 0
when every test passed or was skipped for a reason.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks import machine
from tests.report.write import Outcome, write_report

_INSPECTION = 120.0  # seconds to inspect the machine, which loads torch from the disk
_INIT = 60.0  # seconds for pytest to collect


@dataclass
class Progress:
    """The state after the events so far, of all runs of pytest."""

    order: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    running: str = ""
    since: float = 0.0
    finished: bool = False

    def take(self, event: dict[str, Any]) -> None:
        self.since = event["time"]
        match event["event"]:
            case "collected":
                self.order = self.order or event["tests"]
            case "started":
                self.running = event["test"]
            case "ended":
                self.running = ""
                worlds = [(nranks, threads) for nranks, threads in event["worlds"]]
                self.end(event["test"], event["outcome"], event["why"], event["seconds"], worlds)
            case "finished":
                self.finished = True

    def end(
        self,
        test: str,
        outcome: str,
        why: str,
        seconds: float = 0.0,
        worlds: list[tuple[int, bool]] | None = None,
    ) -> None:
        text = machine.scrub(why)
        self.outcomes[test] = Outcome(test, outcome, text, round(seconds, 3), worlds or [])
        print(f"{outcome:8} {seconds:6.1f} s  {test}", flush=True)
        if outcome not in ("passed", "skipped"):
            print("\n".join(f"    {line}" for line in text.splitlines()[-30:]), flush=True)


class Supervisor:
    """Runs pytest until every test has an outcome or the time is up."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._events = folder / "events"
        self._events.touch()
        self._stop = time.monotonic() + options.total
        self.progress = Progress()

    def run(self) -> None:
        with self._events.open() as events:
            while not self.progress.finished and time.monotonic() < self._stop:
                before = len(self.progress.outcomes)
                self._once(events)
                if len(self.progress.outcomes) == before and not self.progress.finished:
                    break  # it ended without a test: all of them fail
        for test in self.progress.order:
            if test not in self.progress.outcomes:
                self.progress.end(test, "not run", "the time was up")

    def _once(self, events: IO[str]) -> None:
        """One run of pytest over the tests without an outcome."""
        progress = self.progress
        past = self._folder / "past"
        past.write_text("\n".join(progress.outcomes))
        output = self._folder / "output"
        with output.open("w") as file:
            pytest = subprocess.Popen(
                self._command(past),
                cwd=machine.ROOT,
                env=self._environment(),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            progress.since = time.time()
            try:
                late = self._watch(pytest, events)
            finally:
                self._kill(pytest)
        self._read(events)
        if progress.running:
            test, progress.running = progress.running, ""
            seconds = time.time() - progress.since
            what = late or f"pytest ended with status {pytest.returncode}"
            progress.end(test, "hung" if late else "died", f"{what}\n{_tail(output)}", seconds)
        elif not progress.finished:
            print(machine.scrub(_tail(output)), flush=True)

    def _watch(self, pytest: subprocess.Popen[bytes], events: IO[str]) -> str:
        """Wait for the end of pytest; why it must be ended, or ''."""
        while pytest.poll() is None:
            self._read(events)
            if time.monotonic() > self._stop:
                return f"the {self._options.total:g} s for all tests were over"
            limit = self._options.each if self.progress.running else _INIT
            if time.time() - self.progress.since > limit:
                os.kill(pytest.pid, signal.SIGABRT)  # faulthandler prints where all threads are
                time.sleep(0.5)
                return f"not done within {limit:g} s"
            time.sleep(0.05)
        return ""

    def _read(self, events: IO[str]) -> None:
        while line := events.readline():
            self.progress.take(json.loads(line))

    @staticmethod
    def _kill(pytest: subprocess.Popen[bytes]) -> None:
        """End pytest and all that it started; ranks end with their parent anyway."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pytest.pid, signal.SIGKILL)
        pytest.wait()

    def _command(self, past: Path) -> list[str]:
        options = self._options
        marker = ["-m", "gpu"] if options.device == "cuda" else []
        return [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.report.recorder",
            "-q",
            "--tb=short",
            "--of",
            _provider(options.device),
            "--events",
            str(self._events),
            "--past",
            str(past),
            *marker,
            *(["-k", options.k] if options.k else []),
            "--continue-on-collection-errors",
            "-p",
            "no:cacheprovider",
            *options.tests,
        ]

    def _environment(self) -> dict[str, str]:
        path = filter(None, [str(machine.ROOT), os.environ.get("PYTHONPATH")])
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYNCCL_TEST_SHORT": "1",
            "PYNCCL_TEST_LIMIT": str(max(1.0, self._options.each - 10)),
        }


def _provider(device: str) -> str:
    return "cuda" if device == "cuda" else "host"


def _tail(output: Path) -> str:
    return output.read_text(errors="replace")[-6000:]


def _look(device: str) -> machine.Machine:
    """The facts of the machine, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.machine", "--device", device],
        cwd=machine.ROOT, capture_output=True, text=True, timeout=_INSPECTION, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SystemExit(f"error: {machine.scrub(reason)}")
    facts = json.loads(done.stdout.splitlines()[-1])
    return machine.Machine(**{**facts, "gpus": tuple(facts["gpus"])})


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("tests", nargs="*", default=["tests"], help="as for pytest (default: all)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    add("--out", type=Path, help="folder (default: docs/results, build/results for cpu)")
    add("--total", type=float, default=440.0, help="seconds for all tests (default: %(default)g)")
    add("--each", type=float, default=60.0, help="seconds for a test (default: %(default)g)")
    add("-k", default="", metavar="EXPRESSION", help="only such tests, as for pytest")
    return parser.parse_args()


def main() -> int:
    """Run the tests and write the report; the exit status."""
    options = _parse()
    started = time.monotonic()
    facts = _look(options.device)
    with tempfile.TemporaryDirectory(prefix="pynccl-tests-") as folder:
        supervisor = Supervisor(options, Path(folder))
        supervisor.run()
    progress = supervisor.progress
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    out = (
        options.out or machine.ROOT / ("docs" if options.device == "cuda" else "build") / "results"
    )
    stem = out / f"{date}-{machine.slug(facts)}-tests"
    tests = dict.fromkeys([*progress.order, *progress.outcomes])
    outcomes = [progress.outcomes[test] for test in tests]
    well = write_report(stem, date, facts, outcomes, time.monotonic() - started)
    print(f"wrote {stem.name}.md and .json")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
