"""A version arrives bit-equal at all receivers, with every commit mode and transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pynccl.testing import Rank
from pynccl.weights import WeightReceiver, WeightSender
from tests.support.launcher import Launcher
from tests.support.store import FolderStore
from tests.weights import models
from tests.weights.sessions import TRANSPORTS

VERSIONS = 3


def take_part(rank: Rank, folder: str, commit: str, options: dict[str, Any]) -> list[str]:
    """Rank 0 sends versions, the others receive and check them."""
    store = FolderStore(folder)
    if rank.rank == 0:
        with WeightSender(store, receivers=rank.world_size - 1, timeout=20, **options) as sender:
            reports = [sender.send(models.make(version)) for version in range(1, VERSIONS + 1)]
            assert [report.version for report in reports] == [1, 2, 3]
            assert all(len(report.receivers) == rank.world_size - 1 for report in reports)
            assert not any(report.lost or report.repaired for report in reports)
            return list(map(str, reports))
    into = None if commit == "swap" else models.blank(models.make(0))
    with WeightReceiver(store, into, commit=commit, timeout=20) as receiver:
        assert not receiver.is_whole
        count = 0
        for report in receiver:
            count += 1
            assert report.version == receiver.version == count
            assert receiver.is_whole
            expected = models.make(count)
            for name, tensor in expected.items():
                assert models.same(receiver.tensors[name], tensor), name
            assert into is None or models.equal(into, expected)
        assert count == VERSIONS
    return []


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("commit", ["swap", "copy", "in_place"])
def test_commits(launch: Launcher, tmp_path: Path, commit: str, transport: str) -> None:
    options = {"bucket_bytes": 1 << 20, "direct_bytes": 1 << 16, "transport": transport}
    launch(3, take_part, str(tmp_path), commit, options, ids=0)
