"""The examples of pynccl.weights print the output in their docstrings."""

from __future__ import annotations

import pytest

from tests.support import examples
from tests.support.tier import FULL


@pytest.mark.parametrize("example", examples.read("weights"), ids=lambda e: e.path.stem)
def test_examples(example: examples.Example) -> None:
    if example.path.stem == "ray_actors":
        if not FULL:
            pytest.skip("Ray takes half a minute: `make test-all`")
        pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    example.check(example.run())
