"""Proves that Ctrl-C ends the waits of the main thread in the backend with a KeyboardInterrupt."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.blocking import interrupt_when_blocked

World = Callable[..., list[Any]]

_LONG = 40.0  # seconds that the waits last without a signal
_WAITS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "work": lambda group, x: dist.all_reduce(x, group=group, async_op=True).wait(),
    "limited": lambda group, x: dist.all_reduce(x, group=group, async_op=True).wait(
        timedelta(seconds=_LONG)
    ),
    "call": lambda group, x: dist.all_reduce(x, group=group),
    "turn": lambda group, x: [
        dist.all_reduce(x, group=group, async_op=async_op) for async_op in (True, False)
    ],
    "pending": lambda group, x: [
        dist.all_reduce(x, group=group, async_op=True),
        group._wait_for_pending_works(),
    ],
    "connect": lambda group, x: dist.recv(x, 1, group),
}


def _interrupted(rank: int, _size: int) -> dict[str, float]:
    """The seconds from the signal to the end of each wait, on rank 0."""
    groups = {name: dist.new_group([0, 1]) for name in _WAITS}
    for group in groups.values():
        dist.all_reduce(torch.ones(1), group=group)
    if rank == 1:
        dist.barrier()
        return {}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    late = {}
    for name, wait in _WAITS.items():
        sent = interrupt_when_blocked()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            wait(groups[name], torch.ones(4))
            time.sleep(0.01)  # the exception is raised between two instructions
        late[name] = time.monotonic() - sent[0]
    dist.barrier()
    return late


def test_a_wait_is_interrupted(torch_world: World) -> None:
    env = {"HOSTNCCL_DEADLOCK_MS": "60000"}  # rank 1 waits for rank 0
    late = torch_world(2, _interrupted, fresh=True, env=env)[0]
    assert late.keys() == _WAITS.keys()
    assert max(late.values()) < _LONG / 2, late
