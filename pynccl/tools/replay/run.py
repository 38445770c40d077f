"""Starts the ranks of a replay, and combines their reports into a table and findings."""

from __future__ import annotations

import pickle
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pynccl.flight.analysis import Finding
from pynccl.testing import Launcher, LaunchError
from pynccl.tools.replay.check import check
from pynccl.tools.replay.compiler import compile_programs
from pynccl.tools.replay.program import Program
from pynccl.tools.replay.rank import Options, Outcome, run_rank
from pynccl.tools.replay.recorded import Recorded, ReplayError, gather
from pynccl.tools.trace.bandwidth import bandwidth
from pynccl.tools.trace.model import Operation, ProcessTrace
from pynccl.tools.trace.shape import total

__all__ = ["Result", "Row", "replay"]

_LARGEST_SCALE = 1e9
_SILENCE = 60.0  # seconds without progress of any rank, in addition to the time limit


@dataclass(frozen=True)
class Row:
    """The operations of one kind and size.

    Attributes:
        kind: kind of the operations.
        nranks: size of their communicators.
        nbytes: the recorded size in bytes, that of the larger of input and output.
        replayed_nbytes: the replayed size.
        calls: number of calls on all ranks.
        recorded: the median on the recorded device, in seconds; None if it was not timed.
        replayed: the median of the replay, in seconds.
        ratio: the ratio of the two.
        busbw: the bus bandwidth of the replay in GB/s; None if the kind has none.
    """

    kind: str
    nranks: int
    nbytes: int
    replayed_nbytes: int
    calls: int
    recorded: float | None
    replayed: float
    ratio: float | None
    busbw: float | None


@dataclass
class Result:
    """The result of a replay.

    Attributes:
        rows: one per kind and size.
        notes: differences between the recordings and the replay, as text.
        findings: differences between the ranks' recordings; nothing was issued if there are any.
        failures: the errors that stopped ranks, by rank of the process.
        operations: number of operations on all ranks.
        seconds: the time of the slowest rank.
    """

    rows: list[Row]
    notes: list[str]
    findings: list[Finding]
    failures: dict[int, str]
    operations: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether there are no findings and no failures."""
        return not (self.findings or self.failures)


def replay(
    traces: Sequence[ProcessTrace],
    *,
    provider: str = "host",
    ranks: int | None = None,
    scale: float = 1.0,
    speed: Literal["max", "recorded"] = "max",
    timeout: float = 20.0,
) -> Result:
    """Replay recorded operations: the same ones, in the same order, on the same number of streams.

    Every recorded process becomes a process on this machine. Communicators are created with
    ncclCommInitRank and the recorded ranks. docs/replay.md describes how the replay differs from
    the recorded program.

    Args:
        traces: the recordings or traces, one per process.
        provider: "host" or "cuda".
        ranks: replay only the first ones, and cut communicators to these; None is all.
        scale: factor for counts, which remain at least 1; at most 1e9.
        speed: "recorded" preserves the time between calls, "max" does not.
        timeout: time limit of every operation, in seconds.

    Returns:
        The findings, and the times of the operations by kind and size.

    Raises:
        ReplayError: the recordings do not belong together, or an argument is out of range.
        LaunchError: a rank died.
    """
    if speed not in ("max", "recorded"):
        raise ReplayError(f"speed: {speed!r} is neither 'max' nor 'recorded'")
    if not 0 < scale <= _LARGEST_SCALE:
        raise ReplayError(f"scale: {scale} is not above 0 and at most {_LARGEST_SCALE:g}")
    if not 0 < timeout < float("inf"):
        raise ReplayError(f"timeout: {timeout} is not above 0")
    recorded = gather(traces, ranks)
    if findings := check(recorded):
        return Result([], recorded.notes, findings, {})
    programs = compile_programs(recorded, provider=provider, scale=scale)
    options = Options(provider, speed == "recorded", timeout)
    first = min((step.at for program in programs for step in program.steps), default=0)
    with tempfile.TemporaryDirectory(prefix="pynccl-replay-", ignore_cleanup_errors=True) as folder:
        for number, program in enumerate(programs):
            Path(folder, f"program-{number}").write_bytes(pickle.dumps(program))
        outcomes = _run(len(programs), len(recorded.comms), options, folder, first)
    return _result(recorded, programs, outcomes)


def _run(nranks: int, comms: int, options: Options, folder: str, first: int) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    ready = set[int]()
    with (
        Launcher() as launcher,
        launcher.start(
            nranks,
            run_rank,
            (options, folder),
            provider=options.provider,
            timeout=None,
            unique_ids=comms,
            fresh=True,
        ) as run,
    ):
        for rank, value in run.reports(silence=options.timeout + _SILENCE):
            if isinstance(value, Outcome):
                outcomes[rank] = value
            if value == "ready" or rank in outcomes:
                ready.add(rank)
            if len(ready) == nranks and not Path(folder, "start").exists():
                _publish(folder, "start", str(first))
            if len(outcomes) == nranks and not Path(folder, "end").exists():
                _publish(folder, "end", "")
    if len(outcomes) < nranks:
        raise LaunchError("a rank has ended without a report")
    return [outcomes[rank] for rank in range(nranks)]


def _publish(folder: str, name: str, text: str) -> None:
    part = Path(folder, f"{name}.part")
    part.write_text(text)
    part.rename(Path(folder, name))


def _result(recorded: Recorded, programs: Sequence[Program], every: Sequence[Outcome]) -> Result:
    outcomes = {program.rank: outcome for program, outcome in zip(programs, every, strict=True)}
    done = [program for program in programs if outcomes[program.rank].failure is None]
    failures = {
        rank: outcome.failure for rank, outcome in outcomes.items() if outcome.failure is not None
    }
    return Result(
        _rows_of(programs, every),
        recorded.notes,
        [],
        failures,
        sum(len(program.operations) for program in done),
        max((outcome.seconds for outcome in every), default=0.0),
    )


def _rows_of(programs: Sequence[Program], every: Sequence[Outcome]) -> list[Row]:
    """The rows, ordered by kind and size."""
    groups: dict[tuple[str, int, int, int], list[tuple[Operation, int]]] = defaultdict(list)
    for program, outcome in zip(programs, every, strict=True):
        for op, duration in zip(program.operations, outcome.durations, strict=False):
            nranks, dtype = op.member.nranks, op.recorded.dtype
            counts = (op.recorded.count, op.count)
            sizes = [total(op.kind, nranks, count, dtype) for count in counts]
            groups[op.kind, sizes[0], sizes[1], nranks].append((op.recorded, duration))
    rows = []
    for (kind, nbytes, replayed_nbytes, nranks), calls in sorted(groups.items()):
        times = [
            one.ended - one.began
            for one, _ in calls
            if one.began is not None and one.ended is not None
        ]
        recorded = statistics.median(times) / 1e9 if times else None
        replayed = statistics.median(duration for _, duration in calls) / 1e9
        rows.append(
            Row(
                kind,
                nranks,
                nbytes,
                replayed_nbytes,
                len(calls),
                recorded,
                replayed,
                replayed / recorded if recorded else None,
                bandwidth(kind, replayed_nbytes, replayed, nranks).busbw
                if replayed_nbytes and replayed
                else None,
            )
        )
    return rows
