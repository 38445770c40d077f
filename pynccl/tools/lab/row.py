"""The results of the overlap lab: durations, evidence, and rows of them."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pynccl.tools.lab.verdict import (
    Evidence,
    Verdict,
    classify,
    needs_evidence,
    rounds_to_decide,
)
from pynccl.tools.text import columns, size_text

__all__ = ["Row", "Span", "Timing", "hidden_text", "varying", "write_json", "write_table"]


@dataclass(frozen=True)
class Timing:
    """The samples of one duration.

    Attributes:
        samples: in seconds, in the order of measurement. Each is the maximum over the ranks.
    """

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile in seconds."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median in seconds.

        Its ends are samples, whatever the distribution. Of fewer than 6 samples it is the range,
        which covers less.
        """
        count, excluded, tail = len(self.samples), 0, 1
        while 40 * tail <= 2**count:  # the binomial probability of a tail is at most 2.5 %
            excluded += 1
            tail += math.comb(count, excluded)
        index, ordered = max(0, excluded - 1), sorted(self.samples)
        return ordered[index], ordered[-1 - index]


class Span(NamedTuple):
    """The position of work on its stream, in seconds since the step began.

    Attributes:
        began: when the stream reached the first event; the work may still have waited after it.
        ended: when the stream reached the last event.
    """

    began: float
    ended: float


@dataclass(frozen=True)
class Row:
    """One measurement of the overlap lab. All times are in seconds.

    Attributes:
        compute: the compute alone, T_compute.
        communication: the communication alone, T_comm.
        both: both in one step, T_both.
        compute_lane: the compute alone, between two events on its stream.
        communication_lane: the communication alone, between two events on its stream.
        compute_beside: the compute between its events, beside the communication.
        communication_beside: the communication between its events, beside the compute.
        evidence: the results of the probes.
        spans: "compute" and "communication" in the step of both, by medians, on the slowest rank.
        nranks: the number of ranks.
        provider: "host" or "cuda".
        setting: the caller's settings, by name.
        interleaved: whether one function enqueued both, so that each span is the whole step.
    """

    compute: Timing
    communication: Timing
    both: Timing
    compute_lane: Timing
    communication_lane: Timing
    compute_beside: Timing
    communication_beside: Timing
    evidence: Evidence
    spans: Mapping[str, Span]
    nranks: int
    provider: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    interleaved: bool = False

    @property
    def _differences(self) -> Timing:
        """T_both - T_compute of each round. Adjacent runs share slow changes of the machine."""
        pairs = zip(self.both.samples, self.compute.samples, strict=True)
        return Timing(tuple(both - compute for both, compute in pairs))

    @property
    def _shares(self) -> Timing:
        """The hidden share of each round."""
        pairs = zip(self._differences.samples, self.communication.samples, strict=True)
        return Timing(tuple(1.0 - exposed / max(alone, 1e-9) for exposed, alone in pairs))

    @property
    def exposed(self) -> float:
        """The time that the communication adds to the compute, in seconds.

        The median of T_both - T_compute over the rounds, at least 0.0: less is noise.
        """
        return max(0.0, self._differences.median)

    @property
    def exposed_interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the exposed time, in seconds, from 0.0 on."""
        low, high = self._differences.interval
        return max(0.0, low), max(0.0, high)

    @property
    def hidden(self) -> float:
        """The hidden share of the communication; 1.0 is fully hidden.

        The median of 1 - (T_both - T_compute) / T_comm over the rounds, at most 1.0. It is negative
        if the step takes longer than compute and communication one after the other.
        """
        return min(1.0, self._shares.median)

    @property
    def hidden_interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the hidden share; due to noise, it can exceed 1.0."""
        return self._shares.interval

    @property
    def repeats_to_decide(self) -> int | None:
        """The number of rounds after which the times would have a verdict; None if they have."""
        return rounds_to_decide(*self._times, self.hidden_interval, len(self.both.samples))

    @property
    def needs_evidence(self) -> bool:
        """Whether the times leave the reason open."""
        return needs_evidence(*self._times)

    @property
    def _times(self) -> tuple[float, float, float]:
        """T_compute and T_comm, and the T_both that corresponds to the hidden share."""
        compute, communication = self.compute.median, self.communication.median
        return compute, communication, compute + (1.0 - self.hidden) * communication

    @property
    def bound(self) -> float:
        """max(T_compute, T_comm) in seconds: the shortest possible step."""
        return max(self.compute.median, self.communication.median)

    @property
    def compute_slowdown(self) -> float:
        """The factor by which the communication slows the compute."""
        return self.compute_beside.median / max(self.compute_lane.median, 1e-9)

    @property
    def communication_slowdown(self) -> float:
        """The factor by which the compute slows the communication."""
        return self.communication_beside.median / max(self.communication_lane.median, 1e-9)

    @property
    def verdict(self) -> Verdict:
        """The verdict: see :func:`pynccl.tools.lab.classify`."""
        compute, communication, both = self._times
        low, high = self._differences.quartiles
        return classify(
            compute=compute,
            communication=communication,
            both=both,
            compute_slowdown=self.compute_slowdown,
            communication_slowdown=self.communication_slowdown,
            evidence=self.evidence,
            provider=self.provider,
            interval=self.hidden_interval,
            spread=high - low,
            rounds=len(self.both.samples),
            lanes=None if self.interleaved else self.spans,
        )

    def as_dict(self) -> dict[str, Any]:
        """Convert the row for JSON: settings, medians, intervals and samples in seconds, verdict.

        Returns:
            A dictionary that json can write.
        """
        return {
            "setting": dict(self.setting),
            "nranks": self.nranks,
            "provider": self.provider,
            "compute": self.compute.median,
            "communication": self.communication.median,
            "both": self.both.median,
            "exposed": self.exposed,
            "exposed_interval": list(self.exposed_interval),
            "hidden": self.hidden,
            "hidden_interval": list(self.hidden_interval),
            "bound": self.bound,
            "compute_slowdown": self.compute_slowdown,
            "communication_slowdown": self.communication_slowdown,
            "verdict": self.verdict.kind,
            "reason": self.verdict.reason,
            "text": str(self.verdict),
            "repeats_to_decide": self.verdict.repeats,
            "samples": {
                name: list(value.samples)
                for name, value in vars(self).items()
                if isinstance(value, Timing)
            },
            "evidence": dataclasses.asdict(self.evidence),
            "spans": {name: list(span) for name, span in self.spans.items()},
        }


# --- rows as a table and JSON


def varying(rows: Sequence[Row]) -> list[str]:
    """The names of the settings that differ between rows, with the size last."""
    names = sorted(rows[0].setting, key=lambda name: name == "nbytes") if rows else []
    return [name for name in names if len({str(row.setting.get(name)) for row in rows}) > 1]


def hidden_text(row: Row) -> str:
    """The hidden share, or its interval if the verdict is not certain: "85%", "40-95%"."""
    if row.verdict.kind != "not certain":
        return f"{round(row.hidden, 2) + 0.0:.0%}"  # no "-0%"
    low, high = (min(max(share, 0.0), 1.0) for share in row.hidden_interval)
    return f"{low * 100:.0f}-{high:.0%}"


def write_table(rows: Sequence[Row]) -> str:
    """Format rows as text: times in milliseconds, preceded by the settings that differ."""
    names = varying(rows) or [name for name in ("nbytes",) if rows and name in rows[0].setting]
    cells: list[tuple[str, Callable[[Row], str]]] = [
        *(("size" if name == "nbytes" else name, _setting(name)) for name in names),
        ("T_compute", lambda row: f"{row.compute.median * 1e3:.3f}"),
        ("T_comm", lambda row: f"{row.communication.median * 1e3:.3f}"),
        ("T_both", lambda row: f"{row.both.median * 1e3:.3f}"),
        ("exposed", _exposed),
        ("hidden", hidden_text),
        ("bound", lambda row: f"{row.bound * 1e3:.3f}"),
        ("slower", lambda row: f"{row.compute_slowdown:.2f}/{row.communication_slowdown:.2f}"),
        ("verdict", lambda row: str(row.verdict)),
    ]
    return columns(rows, cells, left=(len(cells) - 1,))


def _setting(name: str) -> Callable[[Row], str]:
    if name == "nbytes":
        return lambda row: size_text(row.setting[name])
    return lambda row: str(row.setting.get(name, ""))


def _exposed(row: Row) -> str:
    low, high = row.exposed_interval
    return f"{row.exposed * 1e3:.3f} ({low * 1e3:.3f}-{high * 1e3:.3f})"


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows with their samples in seconds."""
    data: dict[str, Any] = {"unit": "seconds", "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(data, indent=1) + "\n")
