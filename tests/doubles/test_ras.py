"""The missing ranks that NCCL's RAS service adds to the error of an overdue operation.

Also the error if the service sees no difference, hangs, or is disabled. tests/flight/test_ras.py
covers its other faults.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.support import ras
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.store import FolderStore

_LIMIT = 0.6  # seconds
_ABSENT = 2


class _BrokenStore(FolderStore):
    def check(self, keys: list[str]) -> bool:
        raise ConnectionError("the process of the store has ended")


class _StuckStore(FolderStore):
    """Blocks from the overdue operation on, like the store of a stopped process."""

    def check(self, keys: list[str]) -> bool:
        while super().check(["stuck"]):
            time.sleep(0.01)
        return super().check(keys)


_STORES = {"store": FolderStore, "broken store": _BrokenStore, "stuck store": _StuckStore}


def _status(folder: Path, *, equal: bool) -> bytes:
    """The state of the job, from the counts that its ranks have written."""
    ranks = []
    for number in range(3):
        pid, launched = json.loads((folder / f"launched.{number}").read_text())
        ranks.append(ras.rank(number, 2 if equal else launched, pid=pid))
    return ras.report(ras.communicator(ranks, size=3))


class _Calls:
    """A rank that counts its calls as NCCL does."""

    def __init__(self, rank: Rank, comm: nccl.Communicator, folder: Path) -> None:
        self._rank, self._comm, self._folder = rank, comm, folder
        self._stream = rank.stream()
        self._buffer = rank.memory.put(np.ones(4, np.float32))
        self._launched = 0

    def all_reduce(self) -> None:
        self._comm.all_reduce(self._buffer, stream=self._stream)
        self._launched += 1
        path = self._folder / f"launched.{self._rank.rank}"
        path.write_text(json.dumps([os.getpid(), self._launched]))

    def wait(self) -> None:
        self._stream.synchronize()


def _hang(rank: Rank, mode: str, where: str) -> tuple[str, list[int] | None, str | None, float]:
    """Rank 2 omits the second all_reduce. Returns the error of rank 0 and its delay."""
    folder = Path(where)
    store = _STORES[mode](folder / "store") if mode in _STORES else None
    comm = rank.communicator(0, store=store)
    own = _Calls(rank, comm, folder)
    own.all_reduce()
    own.wait()
    if rank.rank != 0:
        if rank.rank != _ABSENT:
            own.all_reduce()
        rank.set_event("launched")
        rank.wait_event("done", 0)
        comm.abort()
        return "", None, None, 0
    rank.wait_event("launched", 1, 2)
    with (
        ras.Service(lambda: _status(folder, equal=mode == "no difference")) as service,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("NCCL_RAS_ADDR", service.address)
        if mode == "hang":
            service.replies["STATUS"] = None
        elif mode == "a gigabyte":
            service.replies["STATUS"], service.times = b" " * (1 << 20), 1024
        elif mode == "stuck store":
            (folder / "store" / "stuck").touch()
        comm.timeout = _LIMIT
        began = time.monotonic()
        own.all_reduce()
        with pytest.raises(nccl.NcclTimeoutError) as raised:
            own.wait()
        seconds = time.monotonic() - began
        asked = bool(service.commands)
    (folder / "store" / "stuck").unlink(missing_ok=True)
    rank.set_event("done")
    comm.abort()
    assert asked == (mode != "disabled")
    error = raised.value
    return str(error), error.missing_ranks, error.missing_source, seconds


@pytest.mark.parametrize(
    ("mode", "missing", "text"),
    [
        ("lagging", ([2], "RAS"), "missing rank 2 (RAS): AllReduce 1 on rank 2, 2 on ranks 0, 1"),
        ("no difference", (None, None), "RAS sees no difference; the missing ranks are unknown"),
        ("hang", (None, None), ": no answer within 1.7 s; the missing ranks are unknown"),
        ("a gigabyte", (None, None), ": its report exceeds 16 MiB; the missing ranks are unknown"),
        ("disabled", (None, None), "within 0.6 s; the missing ranks are unknown"),
        ("store", ([2], "store"), "rank 2 has not issued #2 all_reduce"),
        ("broken store", ([2], "RAS"), "missing rank 2 (RAS)"),
        ("stuck store", ([2], "RAS"), "missing rank 2 (RAS)"),
    ],
)
def test_the_error_of_an_overdue_operation(
    launch: Launcher,
    tmp_path: Path,
    mode: str,
    missing: tuple[list[int] | None, str | None],
    text: str,
) -> None:
    env = {"NCCL_RAS_ENABLE": "0"} if mode == "disabled" else {}
    found = launch(3, _hang, mode, str(tmp_path), provider="cuda", env=env, timeout=60)[0]
    assert text in found[0]
    assert found[1:3] == missing
    assert found[3] < _LIMIT + 2 + 5  # on a busy machine
