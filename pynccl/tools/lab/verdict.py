"""The verdict on measured times: hidden, partly hidden, serialised or slowed, and why.

It depends on numbers only, so ranks that agree on the numbers agree on the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Evidence", "Kind", "Reason", "Verdict", "classify", "needs_evidence"]

Kind = Literal["hidden", "partly hidden", "serialised", "slowed by contention"]
Reason = Literal[
    "",
    "same stream",
    "default stream",
    "synchronisation",
    "event",
    "no free SMs",
    "no free cores",
    "shared resource",
    "memory bandwidth",
    "SMs",
    "cores",
    "longer than the compute",
    "unknown",
]

_HIDDEN = 0.95  # the least share of a hidden communication
_SERIAL = 0.10  # the largest overlapping share of the shorter one
_UNSLOWED = 1.15  # the largest slowdown, due to noise, of work that has the device to itself
_SLOWED = 1.10  # the least slowdown that counts
_NO_CORE = 1.5  # the slowdown beside a compute-bound load if there is no core for both
_AT_BOUND = 1.05  # up to this multiple of the bound, a step counts as at the bound


@dataclass(frozen=True)
class Evidence:
    """The results of the probes, equal on all ranks; None if not measured.

    Attributes:
        same_stream: the work of one function waits for the stream of the other, even if the other
            function has not been called.
        default_stream: which function's work runs on a default stream: "compute", "communication"
            or "both".
        synchronises: which function's call blocks the host until streams are done: "compute",
            "communication" or "both".
        waits: which function's work waits for an event of the other one, even while no work of the
            other runs: "compute", "communication" or "both".
        beside_compute: the slowdown of the communication beside the compute, called first so that
            it waits for none of the compute's events.
        beside_memory: the slowdown of the communication beside a memory-bound load.
        beside_arithmetic: the slowdown of the communication beside a compute-bound load.
        first: which function is called first in a step: "compute" or "communication".
    """

    same_stream: bool | None = None
    default_stream: str | None = None
    synchronises: str | None = None
    waits: str | None = None
    beside_compute: float | None = None
    beside_memory: float | None = None
    beside_arithmetic: float | None = None
    first: str = "compute"

    @property
    def is_ordered(self) -> bool:
        """Whether streams or the host, rather than events, make one wait for all of the other."""
        return _structure(self)[0] not in ("", "event")


@dataclass(frozen=True)
class Verdict:
    """The verdict on a row.

    Attributes:
        kind: "hidden", "partly hidden", "serialised" or "slowed by contention".
        reason: why it is not hidden; "" if it is.
        explanation: the reason in words.
    """

    kind: Kind
    reason: Reason = ""
    explanation: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.explanation}" if self.explanation else self.kind


def _structure(evidence: Evidence) -> tuple[Reason, str]:
    """The reason that lies in the program, if there is one."""
    if evidence.same_stream:
        return "same stream", "compute and communication are on the same stream"
    if evidence.default_stream:
        return "default stream", f"on a default stream: {evidence.default_stream}"
    # A blocking call delays what is called after it, but nothing that was called before.
    if evidence.synchronises in (evidence.first, "both"):
        return "synchronisation", f"the call blocks the host: {evidence.first}"
    if evidence.waits == "both":
        return "event", "compute and communication wait for events of each other"
    if evidence.waits:
        other = "communication" if evidence.waits == "compute" else "compute"
        return "event", f"the {evidence.waits} waits for an event of the {other}"
    return "", ""


def _contention(evidence: Evidence, provider: str, slowdown: float) -> tuple[Reason, str] | None:
    """The contended resource, from the slowdowns beside the two loads; None if neither slows it."""
    memory, arithmetic = evidence.beside_memory, evidence.beside_arithmetic
    if memory is None or arithmetic is None or max(memory, arithmetic) < _SLOWED:
        return None
    # A memory-bound load also occupies SMs or cores. They are the reason if arithmetic, which needs
    # no bandwidth, slows the communication at least half as much as the compute does.
    if arithmetic - 1 >= 0.5 * (min(memory, max(slowdown, _SLOWED)) - 1):
        reason: Reason = "SMs" if provider == "cuda" else "cores"
    else:
        reason = "memory bandwidth"
    beside = f"{memory:.2f} times beside memory-bound, {arithmetic:.2f} beside compute-bound work"
    return reason, f"{reason} ({beside})"


def _besides(evidence: Evidence, provider: str) -> str:
    """The text to append if an event is the reason and contention may be another."""
    slowdown = evidence.beside_compute or 0.0
    contended = _contention(evidence, provider, slowdown) if slowdown >= _SLOWED else None
    if contended is None:
        return ""
    return f"; also {slowdown:.2f} times slower due to contention: {contended[1]}"


def _overlapped(compute: float, communication: float, both: float) -> float:
    """The share of the shorter one that overlaps: 1 at the bound, 0 if they run in sequence."""
    return (compute + communication - both) / max(min(compute, communication), 1e-9)


def needs_evidence(compute: float, communication: float, both: float) -> bool:
    """Whether the times of a row, in seconds, leave its reason open."""
    hidden = 1 - (both - compute) / max(communication, 1e-9)
    return hidden < _HIDDEN and not _is_at_bound(compute, communication, both)


def _is_at_bound(compute: float, communication: float, both: float) -> bool:
    """Whether only the length of the communication is exposed."""
    return communication > compute and both <= _AT_BOUND * communication


def classify(
    *,
    compute: float,
    communication: float,
    both: float,
    compute_slowdown: float,
    communication_slowdown: float,
    evidence: Evidence,
    provider: str,
    spread: float = 0.0,
) -> Verdict:
    """Classify a row.

    * hidden: at least 95 % of T_comm adds nothing to T_compute.
    * serialised: at most 10 % of the shorter one overlaps, and one of the two is not slowed: it has
      the device to itself. Reasons, in this order: same stream, default stream, synchronisation,
      event. If none of them was seen: on GPUs, no free SMs (the second begins when the first ends,
      though nothing in the program makes it wait); on CPUs, no free cores if a compute-bound load
      slows the communication too, else a shared resource such as a lock or the GIL.
    * partly hidden: the rest, if nothing is slowed. The reason is that the communication takes
      longer than the compute, if T_both is the bound, or one of those above.
    * slowed by contention: one of the two is slowed by the other. The resource is memory bandwidth
      or SMs (on CPUs, cores), distinguished by the slowdown of the communication beside a
      memory-bound and a compute-bound load.

    Args:
        compute: T_compute in seconds.
        communication: T_comm in seconds.
        both: T_both in seconds.
        compute_slowdown: slowdown of the compute beside the communication.
        communication_slowdown: slowdown of the communication beside the compute.
        evidence: the results of the probes.
        provider: "host" or "cuda".
        spread: interquartile range of the exposed time over the rounds, in seconds.

    Returns:
        The verdict.
    """
    if 1 - (both - compute) / max(communication, 1e-9) >= _HIDDEN:
        return Verdict("hidden")
    structure = _structure(evidence)
    if structure[0] == "event":
        structure = "event", structure[1] + _besides(evidence, provider)
    if _overlapped(compute, communication, both) <= _SERIAL:
        if structure[0]:
            return Verdict("serialised", *structure)
        if min(compute_slowdown, communication_slowdown) <= _UNSLOWED:
            return Verdict("serialised", *_exclusive(evidence, provider))
    if _is_at_bound(compute, communication, both):
        why: tuple[Reason, str] = (
            "longer than the compute",
            "the communication takes longer than the compute",
        )
        return Verdict("partly hidden", *why)
    if structure[0]:
        return Verdict("partly hidden", *structure)
    slowdowns = compute_slowdown, communication_slowdown
    return _slowed(evidence, provider, slowdowns, both - compute <= spread)


def _exclusive(evidence: Evidence, provider: str) -> tuple[Reason, str]:
    """The exclusive resource that both need, if no wait was found."""
    found = "the second begins when the first ends, and no wait was found"
    if provider == "cuda":
        return "no free SMs", f"no free SMs: {found}"
    if (evidence.beside_arithmetic or 1.0) >= _NO_CORE:
        return "no free cores", f"no free cores: {found}, but any compute has that effect"
    return "shared resource", f"a shared resource, such as a lock or the GIL: {found}"


def _slowed(
    evidence: Evidence, provider: str, slowdowns: tuple[float, float], is_noise: bool
) -> Verdict:
    """The verdict if part overlaps and nothing in the program makes one wait.

    Args:
        evidence: the results of the probes.
        provider: "host" or "cuda".
        slowdowns: of the compute and of the communication.
        is_noise: whether the exposed time is within its spread.
    """
    contended = _contention(evidence, provider, slowdowns[1])
    if contended is not None and max(slowdowns) >= _SLOWED:
        return Verdict("slowed by contention", *contended)
    if min(slowdowns) >= _SLOWED:
        why = "both are slowed, by something that the two loads do not show"
        return Verdict("slowed by contention", "unknown", why)
    why = "the rest is within the noise" if is_noise else "neither a wait nor contention was found"
    return Verdict("partly hidden", "unknown", why)
