"""A pytest plugin that records events as they happen: a line of JSON for each.

The process that reads them (run.py) knows at any moment which test runs and since when, and loses
nothing when it has to end this one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("report")
    group.addoption("--events", type=Path, help="the file to append to")
    group.addoption("--of", choices=("cuda", "host"), help="the provider whose tests to run")
    group.addoption("--past", type=Path, help="the tests in this file, one on a line, have run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--events"):
        config.pluginmanager.register(_Recorder(config))


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(config.getoption("--events"), flags, 0o644)
        self._provider: str = config.getoption("--of")
        past: Path | None = config.getoption("--past")
        self._past = set(past.read_text().splitlines()) if past else set()
        self._phases: list[pytest.TestReport] = []
        self._launcher: Any = None
        self._worlds = 0

    def _write(self, event: str, **what: object) -> None:
        line = json.dumps({"event": event, "time": time.time(), **what})
        os.write(self._file, f"{line}\n".encode())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # a file that does not import here: the others go on
            why = report.longreprtext
            self._write(
                "ended", test=report.nodeid, outcome="failed", why=why, seconds=0, worlds=[]
            )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        mine = [item for item in items if self._is_mine(item)]
        kept = [item for item in mine if item.nodeid not in self._past]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
        self._write("collected", tests=[item.nodeid for item in mine])

    def _is_mine(self, item: pytest.Item) -> bool:
        """The tests that need a GPU; over CPUs those of them that run there too."""
        if self._provider == "cuda":
            return item.get_closest_marker("gpu") is not None
        call = getattr(item, "callspec", None)
        return call is not None and call.params.get("provider") == "host"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._phases = []
        self._write("started", test=nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._launcher = getattr(item, "funcargs", {}).get("launch")
        self._worlds = len(self._launcher.worlds) if self._launcher else 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._phases.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        worlds = self._launcher.worlds[self._worlds :] if self._launcher else []
        self._launcher = None
        outcomes = [phase.outcome for phase in self._phases]
        outcome = next((o for o in ("failed", "skipped") if o in outcomes), "passed")
        why = next((_why(phase) for phase in self._phases if phase.outcome == outcome), "")
        self._write(
            "ended",
            test=nodeid,
            outcome=outcome,
            why=why if outcome != "passed" else "",
            seconds=sum(phase.duration for phase in self._phases),
            worlds=sorted({(world.nranks, world.threads) for world in worlds}),
        )

    def pytest_sessionfinish(self) -> None:
        self._write("finished")


def _why(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: path, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext
