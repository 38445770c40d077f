"""A plugin of pytest: appends each test's outcome to the file $PYNCCL_JOURNAL once it has ended.

A line is a JSON object with ``test``, ``outcome`` ("passed", "failed" or "skipped") and ``text``,
the text of a failure. If pytest is killed, the file lists the tests that had ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in a worker of xdist
        config.pluginmanager.register(_Journal(Path(os.environ["PYNCCL_JOURNAL"])))


class _Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", report.longreprtext)
        elif report.skipped or report.when == "call":
            self._write(report.nodeid, report.outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", report.longreprtext)

    def _write(self, test: str, outcome: str, text: str = "") -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")
