"""Runs tests of pytest-xdist workers in parallel, and tests marked ``serial`` alone.

Among workers, files marked ``long`` come first, so that no worker starts one when the others have
run out of tests. Without workers, files run in the order of the command line.

Tests hold a shared lock, and serial tests hold it exclusively. Both acquire it through a gate,
where no test overtakes a serial one. Consecutive serial tests of a worker keep the lock, since each
acquisition leaves workers idle until the slowest of them has finished its test. Without -n one test
runs at a time, and nothing is locked.
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
_TURN = pytest.StashKey[contextlib.ExitStack]()  # the lock that this worker holds


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - a class of pytest-xdist
    """Pass the folder of the locks to a worker before it starts (a hook of pytest-xdist)."""
    config: pytest.Config = node.config
    if _FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="pynccl-turns-")
        config.stash[_FOLDER] = folder.name
        config.add_cleanup(folder.cleanup)
    node.workerinput["turns"] = config.stash[_FOLDER]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, order files: those marked long first, then by number of tests."""
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, -tests[item.path]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Run a test with its fixtures under the lock."""
    # Not from the environment, which a nested pytest would inherit.
    worker: dict[str, str] = getattr(item.config, "workerinput", {})
    if "turns" not in worker:
        return (yield)
    stash, alone = item.config.stash, _is_serial(item)
    if _TURN not in stash:
        stash[_TURN] = contextlib.ExitStack()
        stash[_TURN].enter_context(_turn(Path(worker["turns"]), alone=alone))
    try:
        return (yield)
    finally:
        if not (alone and _is_serial(nextitem)):
            stash[_TURN].close()
            del stash[_TURN]


def _is_serial(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("serial") is not None


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
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # forked children may also have it open
        os.close(descriptor)
