"""Proves that each script of examples/torch_course runs by the command in its docstring and prints
the output listed there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands import Run, run_ahead
from tests.support.examples import Example, read
from tests.support.tier import FULL

pytest.importorskip("torch")

_SCRIPTS = read("torch_course", "course")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[Example, Run]]:
    """The run of each script, in progress or completed."""
    with run_ahead(request, "script", Example.run) as started:
        yield started


# Ranks that import torch: test_mirror_launch.py starts others so.
_LONG = () if FULL else ("spawn", "torchrun")
_RUN = [script for script in _SCRIPTS if script.path.stem not in _LONG]


@pytest.mark.parametrize("script", _RUN, ids=lambda script: script.path.stem)
def test_course(script: Example, runs: dict[Example, Run]) -> None:
    script.check(runs[script].result())


def test_course_is_complete() -> None:
    """Every collective and concept has its script."""
    names = {script.path.stem for script in _SCRIPTS}
    collectives = {"broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather",
                   "reduce_scatter", "all_to_all", "barrier"}  # fmt: skip
    assert collectives <= names
    assert len(names) == 21
