"""Proves that torch's own reader of flight records reads the converted ones, and finds what is
wrong in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pynccl import cli
from pynccl.flight.dump import DumpError
from pynccl.flight.torch_format import convert
from tests.support.flight_dumps import communicator, dump, dump_json, record, run_torch

pytest.importorskip("torch.distributed.flight_recorder")

_ALL = [
    *(record(name) for name in ("all_reduce", "broadcast", "reduce", "all_gather")),
    *(record(name) for name in ("reduce_scatter", "all_to_all", "gather", "scatter")),
]


def _analyse(folder: Path, *programs: list[dict[str, Any]], lost: int = 0) -> str:
    """What torch says, with the operations of each rank."""
    nranks = len(programs)
    paths = []
    for rank, program in enumerate(programs):
        path = folder / f"dump_{rank}"
        path.write_text(dump_json(rank, communicator(rank, nranks, program, lost=lost)))
        paths.append(str(path))
    traces = folder / "traces"
    traces.mkdir()
    assert cli.main(["flight", "--torch", str(traces / "trace_"), *paths]) == 0
    return run_torch(traces, folder)


def test_torch_finds_nothing_where_all_ranks_match(tmp_path: Path) -> None:
    output = _analyse(tmp_path, *[_ALL] * 3)
    assert "rror" not in output, output
    assert "Not all ranks" not in output, output


def test_torch_names_the_rank_that_skipped_a_call(tmp_path: Path) -> None:
    waits = [*_ALL, record("all_reduce", "issued")]
    output = _analyse(tmp_path, waits, _ALL, waits)
    assert "Not all ranks joining collective, sequence number: 9" in output
    assert "missing ranks: {1}" in output


def test_torch_names_another_operation(tmp_path: Path) -> None:
    output = _analyse(
        tmp_path, [*_ALL, record("all_reduce", "issued")], [*_ALL, record("broadcast", "issued")]
    )
    assert "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH" in output
    assert "'all_reduce' does not match found collective type: 'broadcast'" in output


def test_messages_match_in_any_order(tmp_path: Path) -> None:
    """An exchange in a group, as each rank calls it, and messages around collectives."""
    exchange = [[record("send", peer=1 - r), record("recv", peer=1 - r)] for r in range(2)]
    output = _analyse(tmp_path, *[[*own, *_ALL, *own, *own] for own in exchange])
    assert "rror" not in output, output
    assert "Not all ranks" not in output, output


def test_torch_names_a_send_without_a_receive(tmp_path: Path) -> None:
    sends = [record("send", peer=1), record("send", "issued", peer=1)]
    output = _analyse(tmp_path, sends, [record("recv", peer=0)])
    assert "Not all ranks joining collective, sequence number: 2" in output
    assert "collective: nccl:send 0->1" in output


def test_records_that_only_some_ranks_have_kept_are_left_out(tmp_path: Path) -> None:
    output = _analyse(tmp_path, _ALL * 2, [*_ALL, *_ALL], lost=3)
    assert "rror" not in output, output


def test_ranks_are_those_of_the_processes() -> None:
    """A communicator of the processes 5 and 2, of which another one has no file."""
    contents = convert(
        [dump(5, communicator(0, 3, _ALL[:1])), dump(2, communicator(1, 3, _ALL[:1]))]
    )
    assert list(contents) == [2, 5]
    assert contents[5]["pg_config"]["a" * 16]["ranks"] == "[0, 2, 5]"
    entry = contents[5]["entries"][0]
    assert entry["profiling_name"] == "nccl:all_reduce"
    assert (entry["input_sizes"], entry["input_dtypes"]) == ([[4]], ["Float"])
    assert entry["state"] == "completed"


def test_processes_without_a_rank_have_that_of_the_largest_communicator() -> None:
    pair = {"id": "b" * 16}
    dumps = [
        dump(None, communicator(r, 3, []), *([communicator(2 - r, 2, [], **pair)] if r else []))
        for r in range(3)
    ]
    contents = convert(dumps)
    assert list(contents) == [0, 1, 2]
    assert contents[1]["pg_config"]["b" * 16]["ranks"] == "[1, 2]"


def test_ranks_of_one_process_are_as_many_processes() -> None:
    contents = convert([dump(None, communicator(0, 2, _ALL), communicator(1, 2, []))])
    assert [len(content["entries"]) for content in contents.values()] == [len(_ALL), 0]


def test_dumps_without_communicators_are_refused() -> None:
    with pytest.raises(DumpError, match="there is no communicator in these files"):
        convert([dump(0), dump(1)])
