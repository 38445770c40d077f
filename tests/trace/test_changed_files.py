"""Proves that randomly changed files and answers are read, or rejected with their reader's error:
recordings, traces, flight dumps and RAS. ``make fuzz`` tries more.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from pynccl.flight import ras
from pynccl.flight.analysis import analyse
from pynccl.flight.dump import DumpError
from pynccl.flight.dump import parse as parse_dump
from pynccl.tools.replay.check import check
from pynccl.tools.replay.recorded import gather
from pynccl.tools.trace import chrome, recording
from pynccl.tools.trace.model import TraceError
from pynccl.weights import messages
from tests.fuzz import corpus, readers
from tests.support.flight_dumps import communicator, dump, record
from tests.support.recordings import World
from tests.support.tier import FULL

_INPUTS = 1500 if FULL else 300
_LONGEST = 20.0  # seconds for one input of a few kilobytes


@pytest.mark.parametrize("target", readers.TARGETS)
def test_any_change(target: str) -> None:
    originals = corpus.seeds(target)
    changed = 0
    for number in range(_INPUTS):
        rng = random.Random(f"{target}:{number}")
        original = rng.choice(originals)
        data = readers.mutate(original, rng)
        changed += data != original
        began = time.monotonic()
        try:
            readers.TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"{target}, input {number}") from error
        assert time.monotonic() - began < _LONGEST, f"{target}, input {number}"
    assert changed > _INPUTS * 0.9


@pytest.mark.parametrize("target", readers.TARGETS)
def test_the_corpus_is_read(target: str) -> None:
    read: dict[str, Callable[[bytes], object]] = {
        "recording": lambda data: recording.parse(data).operations,
        "trace": lambda data: chrome.parse(data.decode())[0].operations,
        "dump": lambda data: parse_dump(data.decode(), "dump").communicators,
        "weights": lambda data: messages.parse(data, readers.MESSAGES),
        "ras": lambda data: ras.parse(data).communicators,
    }
    for data in corpus.seeds(target):
        assert data.startswith(b"SERVER ") or read[target](data)  # the lines of a service


def _recording(kind: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A recording of the corpus with one of its objects changed."""
    data = corpus.seeds("recording")[0]
    head, rest = data[:15], data[15:]
    parts = [head]
    while rest:
        letter, size = struct.unpack_from("<c3xI", rest)
        contents, rest = rest[8 : 8 + size], rest[8 + size :]
        if letter == kind:
            value = json.loads(contents)
            value = change(value) or value
            contents = json.dumps(value).encode()
        parts.append(struct.pack("<c3xI", letter, len(contents)) + contents)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        (b"H", lambda one: one.update(pid="0"), "pid: '0' is not of type int"),
        (b"H", lambda one: one.update(began=None), "began: None is not of type int"),
        (b"H", lambda one: one.pop("host") and None, "host is missing"),
        (b"H", lambda one: one.update(dtypes=[["int8"]] * 12), "dtypes: "),
        (b"H", lambda _: [1], r"\[1\] is not an object"),
        (b"Z", lambda one: one.update(ended={}), r"ended: \{\} is not of type int"),
        (b"C", lambda one: one.update(rank=[]), r"rank: \[\] is not of type int"),
        (b"C", lambda one: one.update(nranks=1 << 40), "rank 0 of 1099511627776"),
        (b"C", lambda one: one.update(rank=2), "rank 2 of 2"),
    ],
)
def test_values_of_a_recording(
    kind: bytes, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    with pytest.raises(TraceError, match=says):
        recording.parse(_recording(kind, change))


def test_ranks_of_a_trace() -> None:
    value = json.loads(corpus.seeds("trace")[0])
    value["pynccl"]["processes"][0]["communicators"][0]["nranks"] = 1 << 40
    with pytest.raises(TraceError, match="rank 0 of 1099511627776"):
        chrome.parse(json.dumps(value))


def test_integers_that_overflow() -> None:
    """Of a dump, of a trace, and within a tuple of numbers."""
    with pytest.raises(DumpError, match=r"time_ns: 10+\.\.\. exceeds 512 bits"):
        dump(0, communicator(0, 1, []), time_ns=10**400)
    value = json.loads(corpus.seeds("trace")[0])
    value["pynccl"]["processes"][0]["operations"][0]["kernel"] = [0, 0, 1, 1, 10**400, 1, 1]
    with pytest.raises(TraceError, match=r"kernel: 10+\.\.\. exceeds 512 bits"):
        chrome.parse(json.dumps(value))


def test_deeply_nested_values() -> None:
    """In a recording; test_files.py tests those of a trace, which is parsed like a dump."""
    block = b"[" * 200_000
    with pytest.raises(TraceError):
        recording.parse(b"pynccl trace 1\n" + struct.pack("<c3xI", b"H", len(block)) + block)


def test_numbers_of_a_dump() -> None:
    # More collectives than records.
    report = analyse([dump(0, communicator(0, 1, [record("all_reduce")], collectives=1 << 60))])
    assert report.text()
    # The first record common to all is missing.
    programs = [communicator(rank, 2, [record("all_reduce")] * 3, lost=rank) for rank in range(2)]
    del programs[0]["records"][1]
    assert not analyse([dump(rank, one) for rank, one in enumerate(programs)]).findings
    for rank, nranks in ((0, 1 << 40), (-1, 2), (2, 2)):
        with pytest.raises(DumpError, match=f"rank {rank} of {nranks} in communicator"):
            analyse([dump(0, communicator(rank, nranks, []))])


def test_a_few_ranks_of_many_are_compared_in_time() -> None:
    world = World(2)
    for _ in range(3):
        world.all("all_reduce")
    for trace in world.traces:
        trace.communicators = {
            key: dataclasses.replace(one, nranks=100_000)
            for key, one in trace.communicators.items()
        }
    began = time.monotonic()
    recorded = gather(world.traces)
    check(recorded)
    assert len(recorded.comms["0" * 16].missing) == 99_998
    assert time.monotonic() - began < _LONGEST
