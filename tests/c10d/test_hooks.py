"""Proves that torch's debugging tools for all backends work: FlightRecorder, NaN check, DETAIL."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.c10d.in_torch import run_in_torch
from tests.c10d.versions import needs_torch
from tests.support import warm
from tests.support.blocking import wait_until
from tests.support.commands import run_python
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

World = Callable[..., list[Any]]


def _is_written(dump: Path) -> bool:
    """The file exists before it is complete."""
    try:
        return bool(pickle.loads(dump.read_bytes()))
    except (OSError, EOFError, pickle.UnpicklingError):
        return False


def _hang(rank: int, _size: int, folder: str) -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=2))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="waited for rank 1"):
            dist.all_reduce(torch.ones(5))
    # The rank that did not call it also writes its record.
    wait_until(lambda: _is_written(Path(folder) / f"dump_{rank}"))


@needs_torch(2, 15, "FlightRecorder for all backends")
def test_fr_trace_names_the_operation_and_the_missing_rank(
    torch_world: World, tmp_path: Path
) -> None:
    env = {
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"),
        "TORCH_INCLUDE_STACK_TRACE": "0",
        "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "60000",
    }
    torch_world(2, _hang, str(tmp_path), env=env, fresh=True)
    module = "torch.distributed.flight_recorder.fr_trace"
    report = run_python("-m", module, str(tmp_path), "-p", "dump_", popen=warm.Popen)
    assert report.returncode == 0, report.stderr
    assert "collective: pynccl:all_reduce" in report.stdout + report.stderr
    assert "missing ranks: {1}" in report.stdout + report.stderr


def _recorded(_rank: int, _size: int) -> list[dict[str, Any]]:
    import pickle

    dist.all_reduce(torch.ones(3))
    work = dist.all_gather_into_tensor(torch.empty(4), torch.ones(2), async_op=True)
    work.wait()
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace")  # noqa: B009

    def entries() -> list[dict[str, Any]]:
        return pickle.loads(dump(True, False, False, "pynccl"))["entries"]

    wait_until(lambda: [e["state"] for e in entries()] == ["completed"] * 2)
    return entries()


@needs_torch(2, 15, "completion hooks")
def test_flight_recorder_knows_completed_operations(torch_world: World) -> None:
    for entries in torch_world(2, _recorded, fresh=True):
        assert [e["profiling_name"] for e in entries] == [
            "pynccl:all_reduce",
            "pynccl:_all_gather_base",
        ]
        assert all(0 < e["duration_ms"] < 10_000 for e in entries)


@needs_torch(2, 14, "a NaN check for all backends")
@on_ranks(2, env={"TORCH_DIST_NAN_CHECK": "1"}, fresh=True)
def test_nan_check(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(2))
    if rank == 0:
        with pytest.raises(RuntimeError, match="NaN"):
            dist.all_reduce(torch.tensor([1.0, float("nan")]))


def _mismatch(process: Rank, url: str) -> None:
    """Set the level, as TORCH_DISTRIBUTED_DEBUG does when torch is imported."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    run_in_torch(process, _different, url, {}, ())


def _different(rank: int, size: int) -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0].item() == size
    with pytest.raises(RuntimeError, match="mismatch between collectives"):
        dist.all_reduce(torch.ones(2 + rank))


def test_debug_level_detail_finds_a_mismatch(launch: Launcher, tmp_path: Path) -> None:
    launch(2, _mismatch, f"file://{tmp_path}/store", fresh=True)
