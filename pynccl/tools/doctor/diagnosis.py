"""The complete diagnosis, in the order in which it is printed."""

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
    """The result of :func:`diagnose`.

    Attributes:
        about: versions of pynccl, Python and the system.
        findings: all findings, in order.
        seconds: duration of the examination.
    """

    about: dict[str, str]
    findings: Sequence[Finding]
    seconds: float

    @property
    def problems(self) -> list[Finding]:
        """The findings that prevent pynccl from working."""
        return [finding for finding in self.findings if finding.level == "problem"]

    def text(self) -> str:
        """Format the report as text.

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
        """Convert the report for JSON.

        Returns:
            The output of ``pynccl doctor --json``: ``about``, whether everything is in order, the
            findings.
        """
        return {
            **self.about,
            "ok": not self.problems,
            "seconds": round(self.seconds, 3),
            "findings": [asdict(finding) for finding in self.findings],
        }


def diagnose(provider: str | None = None, timeout: float = TIMEOUT) -> Diagnosis:
    """Examine packages, libraries, machine and environment, and run two ranks over each provider.

    Args:
        provider: "cuda" or "host"; a problem is reported if it is not usable. None examines both;
            "cuda" is then required only if there is an NVIDIA GPU or PYNCCL_PROVIDER selects it.
        timeout: seconds without progress after which a process of the examination is ended;
            starting a rank may take four times as long.

    Returns:
        The diagnosis.

    Raises:
        ValueError: the provider is unknown, or timeout is not above 0.
    """
    if provider is not None and provider not in PROVIDERS:
        raise ValueError(f"provider: {provider!r} is not one of {', '.join(map(repr, PROVIDERS))}")
    if not timeout > 0:
        raise ValueError(f"timeout: {timeout} is not above 0")
    began = time.monotonic()
    findings = list(_findings(provider, timeout))
    about = {
        "pynccl": _C.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return Diagnosis(about, findings, time.monotonic() - began)


def _findings(provider: str | None, timeout: float) -> Iterator[Finding]:
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
            yield from ranks.check(facts, timeout)
