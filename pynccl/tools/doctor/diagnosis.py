"""The whole examination, in the order in which it is printed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pynccl import _C
from pynccl.libraries import PROVIDERS
from pynccl.tools.doctor import machine, packages, ranks, variables
from pynccl.tools.doctor.finding import Finding
from pynccl.tools.doctor.library import advise

__all__ = ["TIMEOUT", "Diagnosis", "diagnose"]

TIMEOUT = 10.0  # seconds without progress of a rank's process


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found.

    Attributes:
        about: the versions of pynccl, of Python and of the system.
        findings: everything, in order.
        seconds: what it took.
    """

    about: dict[str, str]
    findings: Sequence[Finding]
    seconds: float

    @property
    def problems(self) -> list[Finding]:
        """What cannot work."""
        return [finding for finding in self.findings if finding.level == "problem"]

    def text(self) -> str:
        """The report for people.

        Returns:
            Lines of text.
        """
        about = self.about
        lines = [f"pynccl {about['pynccl']}, Python {about['python']}, {about['platform']}"]
        area = ""
        for finding in self.findings:
            if finding.area != area:
                area = finding.area
                lines += ["", area]
            lines.append(f"  {finding.level:<8} {finding.text}")
            if finding.advice:
                lines.append(f"           -> {finding.advice}")
        count = len(self.problems)
        result = "no problems" if not count else f"{count} problem{'s' if count > 1 else ''}"
        lines += ["", f"{result} ({self.seconds:.1f} s)"]
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """The report for programs.

        Returns:
            What ``pynccl doctor --json`` prints: ``about``, whether all is well, the findings.
        """
        return {
            **self.about,
            "ok": not self.problems,
            "seconds": round(self.seconds, 3),
            "findings": [asdict(finding) for finding in self.findings],
        }


def diagnose(
    provider: str | None = None, timeout: float = TIMEOUT, program: ranks.Program | None = None
) -> Diagnosis:
    """Examine packages, libraries, machine and environment, and run two ranks over each provider.

    Args:
        provider: "cuda" or "host", which must then be usable; None is both, of which "cuda" must be
            usable where there is an NVIDIA GPU or PYNCCL_PROVIDER says so.
        timeout: seconds without progress, after which a process of the examination is ended; the
            start of a rank may take four times as long.
        program: what the ranks do; None is an all_reduce and a ring of messages.

    Returns:
        What was found.

    Raises:
        ValueError: there is no such provider, or timeout is not above 0.
    """
    if provider is not None and provider not in PROVIDERS:
        raise ValueError(f"provider: {provider!r} is not one of {', '.join(map(repr, PROVIDERS))}")
    if not timeout > 0:
        raise ValueError(f"timeout: {timeout} is not above 0")
    began = time.monotonic()
    findings = list(_findings(provider, timeout, program))
    about = {
        "pynccl": _C.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return Diagnosis(about, findings, time.monotonic() - began)


def _findings(
    provider: str | None, timeout: float, program: ranks.Program | None
) -> Iterator[Finding]:
    device_present = machine.has_nvidia_device()
    chosen = PROVIDERS if provider is None else (provider,)
    required = provider or os.environ.get("PYNCCL_PROVIDER")
    yield from packages.examine(device_present=device_present)
    all_facts = [ranks.find(one, timeout) for one in chosen]
    for facts in all_facts:
        wanted = facts.provider == required
        yield from advise(facts, required=wanted, device_present=device_present)
    yield from machine.examine()
    yield from variables.examine(os.environ, all_facts)
    for facts in all_facts:
        if facts.usable:
            yield from ranks.check(facts, timeout, program)
