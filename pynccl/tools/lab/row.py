"""The results of the overlap lab: durations, evidence, and rows of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pynccl.tools.lab.verdict import Evidence, Verdict, classify

__all__ = ["Row", "Span", "Timing"]


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
    def iqr(self) -> float:
        """The interquartile range in seconds."""
        low, high = self.quartiles
        return high - low


@dataclass(frozen=True)
class Span:
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

    @property
    def exposed(self) -> float:
        """T_both - T_compute in seconds: the time that the communication adds to the compute."""
        return self.both.median - self.compute.median

    @property
    def exposed_spread(self) -> float:
        """The interquartile range of T_both - T_compute over the rounds, in seconds."""
        pairs = zip(self.both.samples, self.compute.samples, strict=True)
        return Timing(tuple(both - compute for both, compute in pairs)).iqr

    @property
    def hidden(self) -> float:
        """The hidden share of the communication, 1 - exposed / T_comm; 1.0 is fully hidden.

        It is negative if the step takes longer than compute and communication one after the other.
        Noise can raise it slightly above 1.
        """
        return 1.0 - self.exposed / max(self.communication.median, 1e-9)

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
        return classify(
            compute=self.compute.median,
            communication=self.communication.median,
            both=self.both.median,
            compute_slowdown=self.compute_slowdown,
            communication_slowdown=self.communication_slowdown,
            evidence=self.evidence,
            provider=self.provider,
            spread=self.exposed_spread,
        )

    def as_dict(self) -> dict[str, Any]:
        """Convert the row for JSON: settings; medians, spreads and samples in seconds; the verdict.

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
            "exposed_spread": self.exposed_spread,
            "hidden": self.hidden,
            "bound": self.bound,
            "compute_slowdown": self.compute_slowdown,
            "communication_slowdown": self.communication_slowdown,
            "verdict": self.verdict.kind,
            "reason": self.verdict.reason,
            "text": str(self.verdict),
            "samples": {
                name: list(value.samples)
                for name, value in vars(self).items()
                if isinstance(value, Timing)
            },
            "evidence": dataclasses.asdict(self.evidence),
            "spans": {name: [span.began, span.ended] for name, span in self.spans.items()},
        }
