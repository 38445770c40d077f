"""Proves the output and the exit status of ``pynccl replay`` for recordings of a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pynccl import cli
from pynccl.tools.replay import ReplayError, load, replay
from tests.support.launcher import Launcher
from tests.support.rank import Rank


def _record(rank: Rank, prefix: str, skips: bool) -> None:
    """Run the program below with a recording, as with PYNCCL_RECORD."""
    from pynccl import _C

    core: Any = _C
    core.start_recording(f"{prefix}-{rank.rank}", 1 << 26)
    try:
        memory = _program(rank, skips)
    finally:
        core.stop_recording()
    if skips:
        rank.communicator(1).close()  # all ranks have issued everything
        rank.comm.abort()  # the all-gather would not end
    del memory  # must live until then


def _program(rank: Rank, skips: bool) -> object:
    """Collectives, groups, splits, plans and puts; rank 1 may skip an operation."""
    import numpy as np

    from pynccl import nccl

    comm, nranks = rank.comm, rank.world_size
    stream = nccl.Stream(rank.provider)
    x, y = np.ones(600, np.float32), np.zeros(600 * nranks, np.float32)
    half = comm.split(rank.rank % 2, rank.rank)
    assert half is not None
    for step in range(4):
        comm.all_reduce(x, stream=stream)
        half.reduce_scatter(y[: 100 * half.nranks], out=x[:100])
        with nccl.group():
            comm.send(x, (rank.rank + 1) % nranks, stream=stream)
            comm.recv(y[:600], (rank.rank - 1) % nranks, stream=stream)
        if not (skips and rank.rank == 1 and step == 3):
            comm.all_gather(x[:10], out=y[: 10 * nranks], stream=stream)
    if not skips:
        with nccl.plan() as planned:
            comm.all_reduce(x[:100])
            comm.broadcast(x[100:200], 1)
        for _ in range(3):
            planned(stream=stream)
        memory = comm.mem_alloc(4096)
        window = comm.register_window(memory)
        put = np.from_dlpack(memory)[:64]
        comm.put_signal(put, (rank.rank + 1) % nranks, window, 1024, stream=stream)
        comm.wait_signal((rank.rank - 1) % nranks, stream=stream)
        comm.barrier(stream=stream)
        stream.synchronize()
    half.close()
    return x, y


@pytest.fixture(scope="module")
def launched() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(scope="module")
def files(launched: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("recordings")
    launched(4, _record, str(folder / "file"), False)
    return sorted(map(str, folder.iterdir()))


@pytest.fixture(scope="module")
def skipping(launched: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("skipping")
    launched(3, _record, str(folder / "file"), True, ids=2)
    return sorted(map(str, folder.iterdir()))


def test_a_recorded_program(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", *files]) == 0
    printed = capsys.readouterr().out
    kinds = [one.kind for path in files for one in load(path)[0].operations]
    one_sided = [kind for kind in kinds if kind in ("put_signal", "wait_signal")]
    assert len(one_sided) == 2 * len(files)
    assert f"{len(kinds) - len(one_sided)} operations in " in printed
    for rank in range(len(files)):
        assert f"note: rank {rank}: 2 one-sided operations are skipped" in printed
    assert "busbw GB/s" in printed
    for kind in ("all_reduce", "reduce_scatter", "send", "recv", "broadcast"):
        assert f"\n{kind} " in printed
    assert "signal" not in printed


def test_json(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", "--json", "--scale", "0.5", *files]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"]
    rows = {(row["kind"], row["nbytes"]): row for row in printed["rows"]}
    row = rows["all_reduce", 2400]
    assert (row["replayed_nbytes"], row["calls"], row["nranks"]) == (1200, 16, 4)
    assert rows["reduce_scatter", 800]["calls"] == 16


def test_fewer_ranks(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", "--ranks", "3", *files]) == 0
    printed = capsys.readouterr().out
    assert "note: rank 3 excluded, as requested" in printed
    assert "has 3 of its 4 ranks" in printed
    assert "has 1 of its 2 ranks" in printed
    assert "operations to or from excluded ranks are dropped" in printed


def test_a_rank_that_skips(skipping: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", *skipping]) == 1
    printed = capsys.readouterr().out
    assert "the ranks differ:" in printed
    assert "rank 1 has not issued #8 all_gather(float32, count=10)" in printed
    assert cli.main(["replay", "--json", *skipping]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["ranks"], finding["number"]) == ("behind", [1], 8)


def test_a_missing_file(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", *files[:2]]) == 1
    assert "there is no file of ranks 2, 3" in capsys.readouterr().out
    assert cli.main(["replay", "--ranks", "2", *files[:2]]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ranks", "5"], "ranks: 5 requested, but there are 4 recordings"),
        (["--ranks", "0"], "ranks: 0 requested, but there are 4 recordings"),
        (["--scale", "0"], "scale: 0.0 is not above 0 and at most 1e+09"),
        (["--scale", "nan"], "scale: nan is not above 0 and at most 1e+09"),
        (["--scale", "1e308"], "scale: 1e+308 is not above 0 and at most 1e+09"),
        (["--timeout", "-1"], "timeout: -1.0 is not above 0"),
    ],
)
def test_wrong_arguments(
    files: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert cli.main(["replay", *arguments, *files]) == 2
    assert capsys.readouterr().err == f"pynccl replay: {says}\n"


def test_a_wrong_speed() -> None:
    with pytest.raises(ReplayError, match="speed: 'slow' is neither 'max' nor 'recorded'"):
        replay([], speed="slow")  # type: ignore[arg-type]


def test_unrelated_files(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", files[0], files[0]]) == 2
    assert "two recordings are of rank 0 of communicator" in capsys.readouterr().err
    assert cli.main(["replay", files[0] + "none"]) == 2
    (tmp_path / "file").write_text("text")
    assert cli.main(["replay", str(tmp_path / "file")]) == 2
    assert "file: this is not a trace or recording of pynccl" in capsys.readouterr().err
