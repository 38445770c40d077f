"""A fixture for tests of many replays: their ranks are kept processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pynccl.testing import Launcher, Run


class _Kept(Launcher):
    """The launcher of replays, whose processes outlive each of them."""

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, *args: Any, **options: Any) -> Run:  # noqa: ANN401
        return super().start(*args, **{**options, "fresh": False})


@pytest.fixture(scope="module")
def kept_ranks() -> Iterator[None]:
    kept = _Kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pynccl.replay.run.Launcher", lambda: kept)
        yield
    kept.close()
