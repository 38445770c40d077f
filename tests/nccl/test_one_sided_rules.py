"""Proves the programs of docs/one-sided.md: the right ones work, the wrong ones raise a ValueError
on all ranks, or wait forever as on a GPU.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_DOCUMENT = Path(__file__).parents[2] / "docs" / "one-sided.md"
_BLOCK = re.compile(r"^```python\n# (wrong|right)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGE = 4096

# The outcome of the wrong program of a rule: the text of its ValueError, or a wait.
_WAITS = "waits"
_WRONG = {
    "Equal offsets within the allocation on all ranks": "0 bytes .* 4096 bytes",
    "One open window per address": "begins at the same address",
    "The same open windows on all ranks at registration": "different windows open",
    "Non-empty puts within the window of the peer": "end after the window of rank",
    "The source of a put in a symmetric window of the same communicator": "is not in a symm",
    "Completion of all puts before memory is reused": "",  # not checked
    "Puts before waits": _WAITS,
    "One-sided operations first in a group": _WAITS,
    "Separate counts for signals of captured operations": _WAITS,
    "One signal in flight per peer in a graph": _WAITS,
}


def _programs() -> dict[str, dict[str, str]]:
    """The programs of each rule: {"wrong": ..., "right": ...}."""
    sections = re.split(r"^### (.*)$", _DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    return {
        rule: dict(_BLOCK.findall(text))
        for rule, text in zip(sections[::2], sections[1::2], strict=True)
    }


_PROGRAMS = _programs()


def test_every_rule_has_both_programs() -> None:
    assert _PROGRAMS.keys() == _WRONG.keys()
    assert all(programs.keys() == {"wrong", "right"} for programs in _PROGRAMS.values())


def _run_program(rank: Rank, program: str) -> tuple[nccl.Stream, np.ndarray]:
    comm, stream = rank.comm, rank.stream()
    buffer = comm.mem_alloc(2 * _PAGE)
    whole = np.from_dlpack(buffer)
    whole[:] = 10 + rank.rank
    names = {
        "nccl": nccl, "np": np, "comm": comm, "rank": rank.rank, "peer": 1 - rank.rank,
        "buffer": buffer, "window": comm.register_window(buffer), "data": whole[:8],
        "stream": stream,
    }  # fmt: skip
    exec(program, names)
    return stream, whole


def _right(rank: Rank, program: str) -> None:
    stream, whole = _run_program(rank, program)
    stream.synchronize()
    if "window, 4096" in program and "buffer.close" not in program:
        expected = 0 if "data[:] = 0" in program else 11 - rank.rank
        assert (whole[_PAGE : _PAGE + 8] == expected).all()
        assert (whole[_PAGE + 8 :] == 10 + rank.rank).all()


@pytest.mark.parametrize("rule", _PROGRAMS)
def test_right(launch: Launcher, rule: str) -> None:
    launch(2, _right, _PROGRAMS[rule]["right"], timeout=30)


def _refused(rank: Rank, program: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _run_program(rank, program)


def _waits(rank: Rank, program: str) -> None:
    done = threading.Event()

    def run() -> None:
        try:
            _run_program(rank, program)[0].synchronize()
        except nccl.NcclError:  # the abort, below
            return
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert not done.wait(0.5)
    rank.comm.abort()
    thread.join(20)
    assert not done.is_set()


@pytest.mark.parametrize("rule", [rule for rule, outcome in _WRONG.items() if outcome])
def test_wrong(launch: Launcher, rule: str) -> None:
    program, outcome = _PROGRAMS[rule]["wrong"], _WRONG[rule]
    if outcome == _WAITS:
        launch(2, _waits, program, timeout=30)
    else:
        launch(2, _refused, program, outcome, timeout=30)
