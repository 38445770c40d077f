"""Runs the probes of the table against a library, and compares the outcomes with NCCL's.

python -m tests.rules.run                      the double of each release, and hostnccl
python -m tests.rules.run 2.30 host            some targets
python -m tests.rules.run --real               the NCCL that pynccl would load
python -m tests.rules.run --nccl libnccl.so.2 --cuda libcuda.so.1   another real library
"""

from __future__ import annotations

import argparse
import ctypes as c
import fnmatch
import json
import math
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pynccl.libraries import locate
from tests.doubles import build
from tests.rules import areas  # noqa: F401 - registers the rules
from tests.rules.api import Driver, MissingError, Nccl
from tests.rules.rank import Board, Rank
from tests.rules.rule import RULES, VERSIONS, Difference, Kind, Rule, outcome_of

__all__ = ["HOST", "Finding", "Target", "compare", "main", "run", "target"]

HOST = "host"
_ROOT = Path(__file__).resolve().parents[2]
_MOST_IN_A_PROCESS = 25


@dataclass(frozen=True)
class Target:
    """A library whose rules are probed: the double of a release, hostnccl or a real one."""

    name: str
    nccl: str
    cuda: str  # "host": the library has its own streams
    version: str  # the release with which it is compared
    env: dict[str, str]
    apart: bool = False  # ranks that need a device each are processes with a host id of their own

    def separates(self, rule: Rule) -> bool:
        """Whether each rank of the rule is a process with a host id of its own."""
        return self.apart and rule.ranks > 1 and not rule.one_device

    def difference(self, rule: Rule) -> Difference | None:
        """The listed difference between this target and NCCL."""
        if self.name in VERSIONS:
            return rule.double
        return rule.host if self.name == HOST else None


def target(name: str, scratch: str) -> Target:
    """The double of a release, or hostnccl."""
    if name == HOST:
        env = {"HOSTNCCL_STRICT": "1", "HOSTNCCL_TUNING": "off"}
        library = _ROOT / "pynccl" / "lib" / "libhostnccl.so"
        return Target(HOST, str(library), "host", "2.30", env)
    folder = build.build(_ROOT / "build" / "cuda-double")
    env = {"CUDA_DOUBLE_FOLDER": scratch, "HOSTNCCL_STRICT": "1", "HOSTNCCL_TUNING": "off"}
    return Target(name, str(build.nccl(folder, name)), str(folder / "libcuda.so.1"), name, env)


# In a process of probes

_KEPT = ("NCCL_SOCKET_", "NCCL_DEBUG")  # the network interface, and NCCL's log


def _probe(rule: Rule, ranks: Sequence[int], board: Board, nccl: Nccl, cuda: Driver) -> list[Any]:
    """Run some ranks of a rule as threads, and return their outcomes."""
    outcomes: list[Any] = ["hang"] * len(ranks)

    def one(index: int) -> None:
        rank = Rank(ranks[index], rule.ranks, board, nccl, cuda)
        try:
            cuda.use(rank.device)
            outcomes[index] = rule.probe(rank)
        except MissingError:
            outcomes[index] = "missing"
        except Exception as error:
            outcomes[index] = f"failed: {error}"
        rank.tell(f"end {rank.rank}")

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(ranks))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + rule.seconds
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    # A finished rank stays alive for the others.
    for other in range(rule.ranks):
        board.read(f"end {other}", max(0, end - time.monotonic()))
    return list(outcomes)


def _serve(rules: list[Rule], ranks: Sequence[int], boards: list[Board], to: Target) -> None:
    """Probe rules one after another up to the first hang, and print the outcomes."""
    for name in set(os.environ):
        if name.startswith(("NCCL_", "HOSTNCCL_")) and not name.startswith(_KEPT):
            del os.environ[name]  # it would change NCCL's behavior
    os.environ.update(to.env)
    if ranks and to.separates(rules[0]):
        os.environ["NCCL_HOSTID"] = f"rules-{ranks[0]}"
    for rule in rules:
        os.environ.update(rule.env)
    host = to.cuda == "host"
    cuda = None if host else c.CDLL(to.cuda, mode=c.RTLD_GLOBAL)
    library = c.CDLL(to.nccl)
    nccl, driver = Nccl(library), Driver(cuda or library, host)
    for rule, board in zip(rules, boards, strict=True):
        if rule.devices > driver.devices():
            outcomes = ["too few devices"] * (len(ranks) or rule.ranks)
        else:
            print(json.dumps([rule.name]), flush=True)
            outcomes = _probe(rule, ranks or range(rule.ranks), board, nccl, driver)
        print(json.dumps([rule.name, outcomes]), flush=True)
        if "hang" in outcomes:
            break


class Process:
    """A process that probes some rules, or one rank of one rule."""

    def __init__(
        self, rules: list[Rule], ranks: Sequence[int], boards: list[Board], to: Target
    ) -> None:
        self.rules, self.ranks = rules, ranks
        self.outcomes: dict[str, list[Any]] = {}
        self.began = time.monotonic()
        self.current = ""
        self.killed = False
        self.stopped = False  # there is no time for its other rules
        self._text = b""
        self.pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(write, 1)
                null = os.open(os.devnull, os.O_WRONLY)
                if "RULES_LOG" not in os.environ:
                    os.dup2(null, 2)
                _serve(rules, ranks, boards, to)
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.close(write)

    def read(self) -> bool:
        """Read outcomes, and return whether the process has ended."""
        data = os.read(self.pipe, 1 << 16)
        self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            name, *outcomes = json.loads(line)
            self.current, self.began = name, time.monotonic()
            if outcomes:
                self.outcomes[name], self.current = outcomes[0], ""
        if data:
            return False
        os.close(self.pipe)
        status = os.waitpid(self.pid, 0)[1]
        if self.current and not self.stopped:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            end: str | None = f"crash {signal.Signals(number).name}" if number else "hang"
            if number == signal.SIGKILL:  # by this runner, or by the probe itself
                end = "hang" if self.killed else None
            self.outcomes[self.current] = [end] * (len(self.ranks) or 1)
        return True

    def late(self) -> bool:
        """Whether its probe hangs undetected by the process itself."""
        limit = RULES[self.current].seconds if self.current else 60
        return time.monotonic() > self.began + limit + 20

    def end_if(self, over: bool) -> None:
        """End it if the time for all probes is over, or its current probe hangs."""
        if over and not self.stopped:
            self.stopped = True
            os.kill(self.pid, signal.SIGKILL)
        elif self.late():
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)


class Runner:
    """Runs probes against a target in parallel processes."""

    def __init__(self, to: Target, jobs: int, end: float) -> None:
        self.to = to
        self.jobs = jobs
        self.end = end  # of time.monotonic(): unfinished probes are then killed and not reported
        self.outcomes: dict[str, Any] = {}
        self._parts: dict[str, dict[int, Any]] = {}
        self._running: list[Process] = []

    def run(self, rules: list[Rule]) -> dict[str, Any]:
        """The outcome of each rule."""
        waiting: list[tuple[list[Rule], Sequence[int], list[Board]]] = []
        together: list[Rule] = []
        for rule in rules:
            if rule.processes or self.to.separates(rule):
                board = Board()
                waiting += [([rule], [rank], [board]) for rank in range(rule.ranks)]
            elif rule.alone:
                waiting.append(([rule], (), [Board()]))
            else:
                together.append(rule)
        count = max(self.jobs, -(-len(together) // _MOST_IN_A_PROCESS))
        for first in range(count):
            if part := together[first::count]:
                waiting.append((part, (), [Board() for _ in part]))
        while waiting or self._running:
            # The ranks of a rule start together, regardless of the limit.
            while waiting and (len(self._running) < self.jobs or waiting[0][1] not in ((), [0])):
                self._running.append(Process(*waiting.pop(0), self.to))
            ready, _, _ = select.select([process.pipe for process in self._running], [], [], 1)
            over = time.monotonic() > self.end
            if over:
                waiting.clear()
            for process in list(self._running):
                process.end_if(over)
                if process.pipe in ready and process.read():
                    self._running.remove(process)
                    left = self._end(process)
                    if left:
                        waiting.append((left, (), [Board() for _ in left]))
        return self.outcomes

    def _end(self, process: Process) -> list[Rule]:
        """Store the outcomes of an ended process, and return the rules it did not reach."""
        for name, outcomes in process.outcomes.items():
            rule = RULES[name]
            parts = self._parts.setdefault(name, {})
            if process.ranks:
                parts[process.ranks[0]] = outcomes[0]
                if len(parts) < rule.ranks:
                    continue
            every = [parts[rank] for rank in range(rule.ranks)] if process.ranks else outcomes
            self.outcomes[name] = _together(every)
        if process.ranks or process.stopped:
            return []
        return [r for r in process.rules if r.name not in process.outcomes]


def _together(outcomes: list[Any]) -> Any:  # noqa: ANN401 - what JSON can represent
    """Combine the outcomes of a rule's ranks; a rank that returns None is ignored."""
    for end in ("crash SIGSEGV", "crash SIGABRT", "hang"):
        if end in outcomes:
            return end
    some = [outcome for outcome in outcomes if outcome is not None]
    if some and all(outcome == some[0] for outcome in some):
        return some[0]
    return some


def run(to: Target, rules: Sequence[Rule], jobs: int = 4, end: float = math.inf) -> dict[str, Any]:
    """The outcomes of the rules that apply to a target, up to a time of time.monotonic()."""
    return Runner(to, jobs, end).run(
        [rule for rule in rules if rule.expected(to.version) is not None]
    )


@dataclass(frozen=True)
class Finding:
    """A rule whose outcome differs from NCCL's or from the outcome listed for the target."""

    rule: Rule
    kind: str
    expected: Any
    outcome: Any
    reason: str


def compare(to: Target, outcomes: dict[str, Any]) -> list[Finding]:
    """Find the differences between outcomes and NCCL's; "unexplained" if not in the table."""
    found = []
    for name, outcome in outcomes.items():
        rule = RULES[name]
        expected, difference = rule.expected(to.version), to.difference(rule)
        listed = outcome_of(difference.outcomes, to.version) if difference else None
        if outcome in (expected, "too few devices"):
            if listed not in (None, expected) and outcome == expected:
                reason = "the listed difference no longer occurs"
                found.append(Finding(rule, "unexplained", expected, outcome, reason))
        elif difference and outcome == listed:
            found.append(Finding(rule, difference.kind, expected, outcome, difference.reason))
        elif isinstance(expected, str) and expected.startswith("crash") and listed is None:
            reason = "a crash of NCCL is not reproduced"
            found.append(Finding(rule, "stricter on purpose", expected, outcome, reason))
        else:
            found.append(Finding(rule, "unexplained", expected, outcome, "not in the table"))
    return found


def _report(to: Target, outcomes: dict[str, Any], shown: set[str]) -> int:
    """Print the differences of some kinds, and count the unexplained ones."""
    findings = compare(to, outcomes)
    kinds = Counter(finding.kind for finding in findings)
    for finding in findings:
        if finding.kind in shown:
            print(f"{to.name}: {finding.rule.name}: {finding.rule.text} ({finding.kind})")
            print(f"    {finding.reason}")
            print(f"    NCCL {json.dumps(finding.expected)}, here {json.dumps(finding.outcome)}")
    unexplained = kinds.pop("unexplained", 0)
    explained = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    print(
        f"{to.name}: {len(outcomes)} rules, {unexplained} unexplained differences "
        f"({explained or 'none listed'})",
        flush=True,
    )
    return unexplained


def _release(library: str) -> str:
    """The table's release for a library: its own, or the latest earlier one."""
    code = c.c_int()
    c.CDLL(library).ncclGetVersion(c.byref(code))
    own = (code.value // 10000, code.value // 100 % 100)
    older = [one for one in VERSIONS if tuple(map(int, one.split("."))) <= own]
    return older[-1] if older else next(iter(VERSIONS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probes of the command line; 1 if a difference is not in the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help="releases of the double, and host")
    parser.add_argument("--real", action="store_true", help="the NCCL that pynccl would load")
    parser.add_argument(
        "--apart",
        action="store_true",
        help="the ranks of a real library share a device, as processes with a host id of their own",
    )
    parser.add_argument("--nccl", help="a real library")
    parser.add_argument("--cuda", default="libcuda.so.1", help="its driver")
    parser.add_argument("--version", default="2.30", choices=VERSIONS, help="the real release")
    parser.add_argument("--only", default="*", help="the rules to probe, as GLOB[,GLOB...]")
    parser.add_argument("--all", action="store_true", help="also show explained differences")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="kill the probes that run after this time"
    )
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    if options.real:
        options.nccl = locate("cuda").path
        options.version = _release(options.nccl)
    globs = options.only.split(",")
    rules = [r for r in RULES.values() if any(fnmatch.fnmatch(r.name, glob) for glob in globs)]
    unexplained = 0
    shown = {"unexplained", *(get_args(Kind) if options.all else ())}
    with tempfile.TemporaryDirectory(prefix="rules-") as scratch:
        names = options.targets or ([] if options.nccl else [*VERSIONS, HOST])
        targets = [target(name, scratch) for name in names]
        if options.nccl:
            targets.append(
                Target("nccl", options.nccl, options.cuda, options.version, {}, options.apart)
            )
        for to in targets:
            outcomes = run(to, rules, options.jobs, end)
            # A busy machine can produce a false "waits", so retry.
            for _ in range(2):
                again = [one.rule for one in compare(to, outcomes) if one.kind == "unexplained"]
                outcomes |= run(to, again, options.jobs, end)
            unexplained += _report(to, outcomes, shown)
    print(f"{unexplained} unexplained differences from NCCL")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
