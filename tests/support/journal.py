"""A plugin of pytest: appends each test's outcome to the file $PYNCCL_JOURNAL once it has ended.

A line is a JSON object with ``test``, ``outcome`` ("passed", "failed" or "skipped") and ``text``,
that of a failure. Where pytest is killed, the file has the tests up to then.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def _write(test: str, outcome: str, text: str = "") -> None:
    if (
        "PYTEST_XDIST_WORKER" not in os.environ
    ):  # workers report to the process that has started them
        with Path(os.environ["PYNCCL_JOURNAL"]).open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _write(report.nodeid, "failed", report.longreprtext)
    elif report.skipped or report.when == "call":
        _write(report.nodeid, report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(report.nodeid, "failed", report.longreprtext)
