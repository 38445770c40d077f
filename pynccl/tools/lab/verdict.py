"""The verdict on measured times: hidden, partly hidden, serialised or slowed, and why.

It depends on numbers only, so ranks that agree on the numbers agree on the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Evidence",
    "Kind",
    "Reason",
    "Verdict",
    "classify",
    "needs_evidence",
    "rounds_to_decide",
]

Kind = Literal["hidden", "partly hidden", "serialised", "slowed by contention", "not certain"]
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
_WIDEST = 0.20  # the widest interval of the hidden share for a verdict
_MANY = 10_000  # rounds


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
        beside_memory: the slowdown of the communication beside a memory-bound load.
        beside_arithmetic: the slowdown of the communication beside a compute-bound load.
        first: which function is called first in a step: "compute" or "communication".
    """

    same_stream: bool | None = None
    default_stream: str | None = None
    synchronises: str | None = None
    waits: str | None = None
    beside_memory: float | None = None
    beside_arithmetic: float | None = None
    first: str = "compute"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a row.

    Attributes:
        kind: "hidden", "partly hidden", "serialised", "slowed by contention" or "not certain".
        reason: why it is not hidden; "" if it is.
        explanation: the reason in words.
        repeats: for "not certain", the number of rounds that would decide; None if more rounds
            would not.
    """

    kind: Kind
    reason: Reason = ""
    explanation: str = ""
    repeats: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.explanation}" if self.explanation else self.kind


def _structure(evidence: Evidence) -> tuple[Reason, str]:
    """The reason in the program itself, if there is one."""
    if evidence.same_stream:
        return "same stream", "compute and communication are on the same stream"
    if evidence.default_stream:
        return "default stream", f"on a default stream: {evidence.default_stream}"
    # A blocking call delays later calls, but no earlier ones.
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


def _overlapped(compute: float, communication: float, both: float) -> float:
    """The share of the shorter one that overlaps: 1 at the bound, 0 if they run in sequence."""
    return (compute + communication - both) / max(min(compute, communication), 1e-9)


def _hidden(compute: float, communication: float, both: float) -> float:
    return 1 - (both - compute) / max(communication, 1e-9)


def needs_evidence(compute: float, communication: float, both: float) -> bool:
    """Whether the times of a row, in seconds, leave its reason open."""
    hidden = _hidden(compute, communication, both)
    return hidden < _HIDDEN and not _is_at_bound(compute, communication, both)


def _is_at_bound(compute: float, communication: float, both: float) -> bool:
    """Whether only the length of the communication is exposed."""
    return communication > compute and both <= _AT_BOUND * communication


def _clipped(interval: tuple[float, float]) -> tuple[float, float]:
    low, high = (min(max(share, 0.0), 1.0) for share in interval)
    return low, high


def rounds_to_decide(
    compute: float,
    communication: float,
    both: float,
    interval: tuple[float, float],
    rounds: int,
) -> int | None:
    """The number of rounds after which the times of a row would have a verdict.

    The interval of the hidden share, within 0 and 100 %, must be at most 20 points wide. A
    communication that is neither hidden nor serialised needs an interval without these cases, and
    without that of a communication that only its length exposes, if it is not one. The width is
    assumed to fall with the square root of the number of rounds.

    Args:
        compute: T_compute in seconds.
        communication: T_comm in seconds.
        both: T_both in seconds.
        interval: the confidence interval of the hidden share.
        rounds: number of rounds so far.

    Returns:
        The number, rounded up to two digits; None if the times have a verdict.
    """
    low, high = interval
    first, last = _clipped(interval)
    is_wide = last - first > _WIDEST
    excess = (high - low) / _WIDEST if is_wide else 0.0  # the factor by which it is too wide
    times = compute, communication, both
    hidden, is_at_bound = _hidden(*times), _is_at_bound(*times)
    if hidden < _HIDDEN and _overlapped(*times) > _SERIAL and not is_wide:
        least, most = _SERIAL * min(compute / max(communication, 1e-9), 1), _HIDDEN
        if communication > compute and not is_at_bound:
            most = min(most, compute / communication - (_AT_BOUND - 1))
        excess = (high - hidden) / max(most - hidden, 1e-9)
        if not is_at_bound:
            excess = max(excess, (hidden - low) / max(hidden - least, 1e-9))
    if excess <= 1:
        return None
    needed = min(rounds * excess**2, 1e9)
    unit: int = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    return math.ceil(needed / unit) * unit


def classify(
    *,
    compute: float,
    communication: float,
    both: float,
    compute_slowdown: float,
    communication_slowdown: float,
    evidence: Evidence,
    provider: str,
    interval: tuple[float, float] | None = None,
    spread: float = 0.0,
    rounds: int = 1,
    lanes: Mapping[str, tuple[float, float]] | None = None,
) -> Verdict:
    """Classify a row.

    * not certain: the interval of the hidden share, within 0 and 100 %, is wider than 20 points, or
      contains two of the cases below; or the exposed time is at most 20 % of T_comm and within the
      spread of the rounds.
    * hidden: at least 95 % of T_comm adds nothing to T_compute.
    * serialised: at most 10 % of the shorter one overlaps, and one of the two is not slowed: it has
      the device to itself. Reasons, in this order: same stream, default stream, synchronisation,
      event. If none of them was seen: on GPUs, no free SMs; on CPUs, no free cores if a
      compute-bound load slows the communication too, else a shared resource such as a lock or the
      GIL.
    * partly hidden: the rest, if nothing is slowed. The reason is that the communication takes
      longer than the compute, if T_both is the bound, or one of those above.
    * slowed by contention: one of the two is slowed by the other. The resource is memory bandwidth
      or SMs (on CPUs, cores), distinguished by the slowdown of the communication beside a
      memory-bound and a compute-bound load.

    A reason that the lanes contradict is dropped.

    Args:
        compute: T_compute in seconds.
        communication: T_comm in seconds.
        both: T_both in seconds.
        compute_slowdown: slowdown of the compute beside the communication.
        communication_slowdown: slowdown of the communication beside the compute.
        evidence: the results of the probes.
        provider: "host" or "cuda".
        interval: the confidence interval of the hidden share; None if the times are exact.
        spread: interquartile range of the exposed time over the rounds, in seconds.
        rounds: number of rounds.
        lanes: start and end of "compute" and "communication" in the step of both, in seconds; None
            if they have no separate lanes.

    Returns:
        The verdict.
    """
    times = compute, communication, both
    hidden = _hidden(*times)
    interval = interval or (hidden, hidden)
    structure = _structure(evidence)
    if structure[0] != "event" and lanes is not None and not _holds_back(lanes, *times[:2]):
        structure = "", ""
    if (repeats := rounds_to_decide(*times, interval, rounds)) is not None:
        return _not_certain(interval, repeats, structure if hidden < _HIDDEN else ("", ""))
    if hidden >= _HIDDEN:
        return Verdict("hidden")
    slowdowns = compute_slowdown, communication_slowdown
    if _overlapped(*times) <= _SERIAL:
        follows = lanes is None or _follows(lanes, *times[:2])
        why = structure if structure[0] else None
        if why is None and min(slowdowns) <= _UNSLOWED and follows:
            why = _exclusive(evidence, provider)
        if why is not None:
            return Verdict("serialised", *why)
    if _is_at_bound(*times):
        text = "the communication takes longer than the compute"
        return Verdict("partly hidden", "longer than the compute", text)
    if both - compute <= min(spread, _WIDEST * communication):
        text = f"{hidden:.0%} hidden, and the exposed time is within the spread of the rounds"
        return Verdict("not certain", structure[0], text)
    return _partly(structure, evidence, provider, slowdowns)


def _not_certain(
    interval: tuple[float, float], repeats: int, structure: tuple[Reason, str]
) -> Verdict:
    low, high = _clipped(interval)
    number = f"about {repeats}" if repeats <= _MANY else f"more than {_MANY}"
    text = f"{low:.0%} to {high:.0%} hidden, {number} repeats would decide"
    found = f"; {structure[1]}" if structure[0] else ""
    return Verdict("not certain", structure[0], text + found, repeats)


def _holds_back(
    lanes: Mapping[str, tuple[float, float]], compute: float, communication: float
) -> bool:
    """Whether one function may begin after the other, as if streams or the host made it wait.

    A lane that is far shorter than the function alone does not contain its work, which runs on
    another stream.
    """
    began = [begin for begin, _ in lanes.values()]
    lengths = {name: end - begin for name, (begin, end) in lanes.items()}
    shorter = min(lengths.values())
    if lengths["compute"] < 0.5 * compute or lengths["communication"] < 0.5 * communication:
        return True
    return max(began) - min(began) >= _SERIAL * shorter


def _follows(
    lanes: Mapping[str, tuple[float, float]], compute: float, communication: float
) -> bool:
    """Whether the later lane leaves room for all its work after the earlier one has ended."""
    alone = {"compute": compute, "communication": communication}
    earlier, later = sorted(lanes, key=lambda name: lanes[name][1])
    room = lanes[later][1] - lanes[earlier][1]
    return alone[later] - room <= _SERIAL * min(alone.values())


def _exclusive(evidence: Evidence, provider: str) -> tuple[Reason, str] | None:
    """The exclusive resource that both need, if no wait was found; None if loads slow one of them.

    Lanes may overlap: an event before work that waits for a resource is reached immediately.
    """
    found = "as long as one after the other, and no wait was found"
    if provider == "cuda":
        return "no free SMs", f"no free SMs: {found}"
    arithmetic = evidence.beside_arithmetic
    if arithmetic is None:
        return "unknown", f"{found}; no load was measured"
    if arithmetic >= _NO_CORE:
        return "no free cores", f"no free cores: {found}, but any compute has that effect"
    if arithmetic >= _SLOWED:
        return None
    return "shared resource", f"a shared resource, such as a lock or the GIL: {found}"


def _partly(
    structure: tuple[Reason, str],
    evidence: Evidence,
    provider: str,
    slowdowns: tuple[float, float],
) -> Verdict:
    """The verdict if the two overlap in part, given the slowdowns of compute and communication."""
    if structure[0]:
        return Verdict("partly hidden", *structure)
    contended = _contention(evidence, provider, slowdowns[1])
    if contended is not None and max(slowdowns) >= _SLOWED:
        return Verdict("slowed by contention", *contended)
    if min(slowdowns) >= _SLOWED:
        why = "both are slowed, by something that the two loads do not show"
        return Verdict("slowed by contention", "unknown", why)
    return Verdict("partly hidden", "unknown", "neither a wait nor contention was found")
