"""Lets workers of pytest-xdist run tests beside each other, and those marked ``serial`` alone.

Among workers, files marked ``long`` come first, so that no worker begins one when the others have
nothing left. Without workers, files run in the order of the command line.

A test holds a lock that it shares with other tests; a test marked serial holds it for itself. Both
take it by way of a gate, at which a serial test is passed by nobody. Without -n there is one test
at a time, and nothing is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["pytest_collection_modifyitems", "pytest_configure_node", "pytest_runtest_protocol"]

_FOLDER = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - a class of pytest-xdist
    """Give a worker the folder of the locks; pytest-xdist calls it before the worker starts."""
    config: pytest.Config = node.config
    if _FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="pynccl-turns-")
        config.stash[_FOLDER] = folder.name
        config.add_cleanup(folder.cleanup)
    node.workerinput["turns"] = config.stash[_FOLDER]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, put the files marked long first, and of the others those with most tests."""
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, -tests[item.path]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test with its fixtures in its turn."""
    # Not by the environment, which a pytest that a test starts has, too.
    worker: dict[str, str] = getattr(item.config, "workerinput", {})
    if "turns" not in worker:
        return (yield)
    with _turn(Path(worker["turns"]), alone=item.get_closest_marker("serial") is not None):
        return (yield)


@contextlib.contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    with contextlib.ExitStack() as turn:
        with _locked(folder / "gate", fcntl.LOCK_EX):
            turn.enter_context(_locked(folder / "tests", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # children that a test forked may have it open, too
        os.close(descriptor)
