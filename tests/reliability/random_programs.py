"""Runs random programs with and without a mistake: python -m tests.reliability.random_programs.

A correct program must end with the correct results. A mistake must result in an error on every
rank, within its time limit and a second, that names the rank that makes it or the operation.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynccl import nccl
from tests.reliability.endings import Ending, ending_of, leaving_nothing
from tests.reliability.programs import Call, Mistake, Program, Step
from tests.reliability.workers import Lane, Member, lanes
from tests.support.store import FolderStore

LIMIT = 1.0  # seconds; _PATIENCE for a correct program
_PATIENCE = 60.0
_GRACE = 20.0  # on a busy machine
_STUCK = 30.0
# The share of the time until a process has allocated its caches; the permitted growth after that.
_WARM_UP, _MIDDLE = 0.3, 0.65  # parts of the time
_LEAST = 6  # programs, however long they take
_GROWTH, _SLACK = 1.05, 4 << 20


class _Runner:
    """One rank of a program."""

    def __init__(
        self, member: Member, program: Program, limit: float, store: FolderStore | None
    ) -> None:
        self.member, self.program = member, program
        self._first = nccl.Communicator(
            member.nranks,
            member.share_id(),
            member.rank,
            config=nccl.Config(timeout=_PATIENCE, check="every" if store else None),
            provider=member.provider,
            device=member.device,
            store=store,
        )
        self._limit = limit
        self.comms: dict[int, nccl.Communicator] = {0: self._first}
        self._streams = [member.stream(), member.stream()]
        self._inputs: list[Any] = []
        self._checks: list[tuple[Call, Any, np.ndarray]] = []
        self.began = 0.0
        self.calling = ""
        stream = self._streams[0]
        self._first.all_reduce(member.memory.put(np.ones(1, np.float32)), stream=stream)
        stream.synchronize()
        self._first.timeout = limit

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.began = time.monotonic()
            self.calling = str(step)
            if step.signal:
                os.kill(os.getpid(), getattr(signal, step.signal))
            if step.splits is not None:
                self._split(step.splits)
            else:
                self._issue(step)
        for stream in self._streams:
            self.began = time.monotonic()
            stream.synchronize()
        for comm in self.comms.values():
            if error := comm.async_error():
                raise error

    def _split(self, number: int) -> None:
        members = self.program.comms[number]
        comm = self._first.split(0 if self.member.rank in members else None)
        if comm is not None:
            comm.timeout = self._limit
            self.comms[number] = comm

    def _issue(self, step: Step) -> None:
        prepared = [self._prepare(call) for call in step.calls]
        stream = None if step.stream is None else self._streams[step.stream]
        if stream is None and self.member.provider != "host":
            stream = self._streams[0]
        with nccl.group() if len(prepared) > 1 else contextlib.nullcontext():
            for method, args, keywords in prepared:
                method(*args, stream=stream, **keywords)

    def _prepare(self, call: Call) -> tuple[Any, list[Any], dict[str, Any]]:
        comm, memory = self.comms[call.comm], self.member.memory
        own, nranks = comm.rank, comm.nranks
        is_sender = own == call.root
        expected = call.output(own, nranks)
        out = None
        if expected is not None:
            out = memory.put(np.full(expected.shape, 99, expected.dtype))
            self._checks.append((call, out, expected))
        data = memory.put(call.input(own, nranks))
        self._inputs.append(data)  # until the streams are done
        if call.name == "message":
            if is_sender:
                return comm.send, [data, call.target], {}
            return comm.recv, [out, call.root], {}
        args: list[Any] = [None if call.name == "scatter" and not is_sender else data]
        if call.name in ("broadcast", "reduce", "gather", "scatter"):
            args.append(call.root)
        keywords: dict[str, Any] = {"op": getattr(nccl, call.op)} if call.op else {}
        if out is not None:
            keywords["out"] = out
        return getattr(comm, call.name), args, keywords

    def check(self) -> None:
        for call, out, expected in self._checks:
            got = self.member.memory.get(out)
            assert (got == expected).all(), f"{call}: {got} instead of {expected}"


@leaving_nothing
def run_rank(
    member: Member, seed: int, folder: str | None = None, *, mistaken: bool
) -> Ending | None:
    """Run a rank of a program; return its error."""
    program = Program(seed, member.nranks)
    mistake = program.mistake() if mistaken else None
    store = FolderStore(folder) if folder else None
    runner = _Runner(member, program, LIMIT if mistaken else _PATIENCE, store)
    ending = None
    try:
        runner.run(program.steps_of(member.rank, mistake))
        if not mistaken:
            runner.check()
    except nccl.NcclError as error:
        if not mistaken:
            raise
        failures = [comm for comm in runner.comms.values() if not comm.closed]
        ending = ending_of(error, runner.began, runner.calling, None)
        ending.text += "".join(
            f" {failure}" for comm in failures if (failure := comm.async_error())
        )
    member.report("done")
    member.hear("go")  # ranks that have an error do not leave: the others must not depend on it
    for comm in reversed(runner.comms.values()):
        comm.abort() if mistaken else comm.close()
    return ending


def _names(text: str, mistake: Mistake, numbers: Iterable[int]) -> bool:
    """Whether a text names the operation, or the rank by one of its numbers."""
    names = [rf"ranks? [\d, and]*\b{number}\b" for number in numbers]
    names += ["send|recv|receives" if name == "message" else name for name in mistake.names]
    return bool(re.search("|".join(names).replace("_", ""), text.replace("_", ""), re.IGNORECASE))


@dataclass
class Failure:
    """A program with an unexpected outcome."""

    seed: int
    what: str
    text: str


def run_program(
    lane: Lane,
    seed: int,
    provider: str,
    *,
    mistaken: bool,
    checked: bool = False,
    nranks: int | None = None,
) -> Failure | None:
    """Run a program on all ranks; with checked, they compare their calls."""
    program = Program(seed, nranks)
    mistake = program.mistake() if mistaken else None
    what = f"seed {seed}, {program.nranks} ranks, {mistake.text if mistake else 'right'}"
    gone = {mistake.rank} if mistake and mistake.kind in ("dead", "stopped") else set()
    ranks = [rank for rank in range(program.nranks) if rank not in gone]
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory()) if checked else None
            options = {"provider": provider, "mistaken": mistaken}
            world = stack.enter_context(
                lane.world(program.nranks, run_rank, seed, folder, **options)
            )
            world.gather(ranks, "done", _STUCK if mistaken else _STUCK + _PATIENCE)
            world.say(ranks, "go")
            endings = world.join(ranks, _STUCK)
            if mistake:
                by_rank = dict(zip(ranks, endings, strict=True))
                by_each = provider == "host" and not checked
                _check(by_rank, program, mistake, by_each=by_each)
    except AssertionError as error:
        return Failure(seed, what, str(error))
    return None


def _check(
    endings: dict[int, Ending | None], program: Program, mistake: Mistake, *, by_each: bool
) -> None:
    """One rank names the mistake; with by_each all do, by the rank's number in a communicator.

    Information on ranks that a rank does not wait for itself is in the engine's memory. It is
    unknown on GPUs, and for ranks that wait in a comparison.
    """
    numbers = {members.index(mistake.rank) for members in program.comms if mistake.rank in members}
    texts = {
        rank: f"rank {rank} in {ending.calling}: {ending.kind}: {ending.text}" if ending else "none"
        for rank, ending in endings.items()
    }
    everything = "\n".join(texts.values())
    named, by_number = [], []
    for rank, ending in endings.items():
        assert ending is not None, f"rank {rank} has no error\n{everything}"
        took = ending.raised - ending.began
        assert took < LIMIT + _GRACE, f"rank {rank} took {took:.2f} s\n{everything}"
        if _names(ending.text, mistake, {mistake.rank}):
            named.append(rank)
        if _names(ending.text, mistake, numbers):
            by_number.append(rank)
    assert named, f"no rank names the rank or the operation\n{everything}"
    assert not by_each or len(by_number) == len(endings), (
        f"only ranks {by_number} name the rank or the operation\n{everything}"
    )


def run_programs(
    seeds: Iterable[int],
    provider: str,
    *,
    mistaken: bool,
    checked: bool = False,
    count: int = 4,
) -> list[Failure]:
    """Run programs, several at a time; return those that failed."""
    failures = []
    with lanes(count) as submit:
        futures = [
            submit(run_program, seed, provider, mistaken=mistaken, checked=checked)
            for seed in seeds
        ]
        for done in as_completed(futures):
            if failure := done.result():
                failures.append(failure)
    return sorted(failures, key=lambda failure: failure.seed)


@dataclass
class Endurance:
    """The result of :func:`endure`.

    Attributes:
        memory: the maximum bytes of each process between two programs, in the middle of the
            time and at its end.
    """

    programs: int
    operations: int
    failures: list[Failure]
    memory: dict[int, tuple[int, int]]

    @property
    def growing(self) -> dict[int, tuple[int, int]]:
        """The processes whose memory has grown."""
        return {p: (a, b) for p, (a, b) in self.memory.items() if b > a * _GROWTH + _SLACK}


def endure(seconds: float, *, nranks: int = 4, busy: int = 1, seed: int = 0) -> Endurance:
    """Run correct programs one after another in the same processes, beside busy processes.

    Args:
        seconds: the duration.
        nranks: the number of ranks of each program.
        busy: number of processes that compute meanwhile.
        seed: seed of the first program.
    """
    result = Endurance(0, 0, [], {})
    lane = Lane()
    loop = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(loop) for _ in range(busy)]
    began = time.monotonic()
    middle: dict[int, int] = {}
    end: dict[int, int] = {}
    try:
        while (elapsed := time.monotonic() - began) < seconds or result.programs < _LEAST:
            number = seed + result.programs
            failure = run_program(lane, number, "host", mistaken=False, nranks=nranks)
            result.programs += 1
            result.operations += sum(len(step.calls) for step in Program(number, nranks).steps)
            if failure:
                result.failures.append(failure)
            if elapsed < seconds * _WARM_UP or result.programs < _LEAST // 2:
                continue
            # Single values vary by a third, because freed memory may be returned later.
            part = end if elapsed > seconds * _MIDDLE and middle else middle
            for pid in lane.pids():
                part[pid] = max(part.get(pid, 0), _memory_of(pid))
        # Workers of a program that failed are new.
        pids = set(lane.pids()) & middle.keys() & end.keys()
        result.memory = {pid: (middle[pid], end[pid]) for pid in pids}
    finally:
        lane.close()
        for other in others:
            other.kill()
            other.wait()
    return result


def _memory_of(pid: int) -> int:
    """The bytes of a process in RAM that do not belong to a file."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(kib) << 10 for kib in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))


def _report(result: Endurance, seconds: float) -> int:
    for failure in result.failures:
        print(f"{failure.what}\n{failure.text}\n")
    for pid, (middle, end) in result.memory.items():
        print(
            f"process {pid}: at most {middle >> 10} KiB in the middle, {end >> 10} KiB at the end"
        )
    print(
        f"{result.programs} programs with {result.operations} operations in {seconds:.0f} s, "
        f"{len(result.failures)} failed, {len(result.growing)} processes grew"
    )
    return bool(result.failures or result.growing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--mistakes", action="store_true", help="one in every program")
    parser.add_argument("--check", action="store_true", help='with Config(check="every")')
    parser.add_argument("--lanes", type=int, default=4, help="programs at a time")
    parser.add_argument("--provider", default="host")
    parser.add_argument("--seconds", type=float, help="one after another for so long, on --ranks")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--busy", type=int, default=1, help="processes that take CPUs meanwhile")
    options = parser.parse_args()
    began = time.monotonic()
    if options.seconds:
        result = endure(options.seconds, nranks=options.ranks, busy=options.busy, seed=options.seed)
        return _report(result, time.monotonic() - began)
    seeds = range(options.seed, options.seed + options.programs)
    failures = run_programs(
        seeds,
        options.provider,
        mistaken=options.mistakes,
        checked=options.check,
        count=options.lanes,
    )
    for failure in failures:
        print(f"{failure.what}\n{failure.text}\n")
    if options.mistakes:
        kinds = collections.Counter(Program(seed).mistake().kind for seed in seeds)
        print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    seconds = time.monotonic() - began
    print(f"{options.programs} programs in {seconds:.0f} s, {len(failures)} failed")
    return bool(failures)


if __name__ == "__main__":
    # Workers import it by this name.
    sys.exit(importlib.import_module("tests.reliability.random_programs").main())
