"""A rule of NCCL's behavior: its text, its probe, and the outcome for each release and target.

The decorator :func:`rule` registers a rule with its probe::

    @rule("CommFinalize", "A second finalize is rejected", nccl=["success", "invalidArgument"])
    def finalize_twice(rank):
        comm = rank.create()
        return [rank.nccl.CommFinalize(comm), rank.nccl.CommFinalize(comm)]

A probe returns the outcome of its rank: a text, a number, or a list or dictionary of them. If all
ranks agree, that is the outcome of the rule, otherwise it is the list of their outcomes. A probe
that does not end has the outcome ``"hang"``, and one whose process died ``"crash SIGSEGV"``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tests.doubles.build import VERSIONS
from tests.rules.api import since

if TYPE_CHECKING:
    from tests.rules.rank import Rank

__all__ = ["RULES", "VERSIONS", "Difference", "Rule", "differs", "rule", "stricter"]

# Outcomes were measured with NCCL's own host code up to 2.30.7; 2.32 is assumed to equal 2.30.
Outcome = Any  # what JSON can represent
# An outcome for all releases, or by first release: {"2.18": ..., "2.24": ...}.
Outcomes = Any

Kind = Literal["stricter on purpose", "differs on purpose"]


@dataclass(frozen=True)
class Difference:
    """An outcome of a target that differs from NCCL's, and the reason."""

    outcomes: Outcomes
    kind: Kind
    reason: str


def stricter(outcomes: Outcomes, reason: str) -> Difference:
    """The target rejects, or ends, what NCCL accepts, leaves undefined or never ends."""
    return Difference(outcomes, "stricter on purpose", reason)


def differs(outcomes: Outcomes, reason: str) -> Difference:
    """The target differs for another good reason."""
    return Difference(outcomes, "differs on purpose", reason)


def outcome_of(outcomes: Outcomes, version: str) -> Outcome:
    """The outcome for a release; None if there is none."""
    if not (isinstance(outcomes, dict) and outcomes and set(outcomes) <= set(VERSIONS)):
        return outcomes
    found = None
    for first, outcome in outcomes.items():
        if VERSIONS[first] <= VERSIONS[version]:
            found = outcome
    return found


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        name: the name of the probe's function.
        function: the nccl.h function, without the prefix.
        text: the rule in plain English.
        outcomes: NCCL's outcomes.
        probe: called once for each rank.
        source: "measured" (with NCCL's host code), "read" with a file and line of NCCL's sources,
            "documented" or "assumed".
        double: how the test double differs.
        host: how hostnccl differs in strict mode.
        ranks: the number of ranks.
        processes: whether each rank is a process of its own, rather than a thread.
        devices: how many devices the probe needs in one process or, with ``processes``, between
            processes of one host.
        one_device: whether all ranks use device 0 of one process.
        first: the first release to which the rule applies, as an NCCL_VERSION_CODE.
        env: environment variables of the probe's process.
        alone: whether the probe needs a process of its own: it may hang or crash.
        seconds: the time after which the probe counts as hung.
    """

    name: str
    function: str
    text: str
    outcomes: Outcomes
    probe: Callable[[Rank], Outcome]
    source: str = "measured"
    double: Difference | None = None
    host: Difference | None = None
    ranks: int = 1
    processes: bool = False
    devices: int = 1
    one_device: bool = False
    first: int = 0
    env: dict[str, str] = field(default_factory=dict)
    alone: bool = False
    seconds: float = 12

    def expected(self, version: str) -> Outcome:
        """NCCL's outcome for a release; None if the rule does not apply to it."""
        if VERSIONS[version] < max(self.first, since(self.function)):
            return None
        return outcome_of(self.outcomes, version)


RULES: dict[str, Rule] = {}


def rule(function: str, text: str, nccl: Outcomes, **options: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    """Register a probe with its rule; options are fields of Rule."""

    def register(probe: Callable[[Rank], Outcome]) -> Callable[[Rank], Outcome]:
        name = options.pop("name", probe.__name__)
        assert name not in RULES, name
        own_process = bool(options.get("env")) or options.get("processes", False)
        options.setdefault("alone", own_process)
        RULES[name] = Rule(name, function, text, nccl, probe, **options)
        return probe

    return register
