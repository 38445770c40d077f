"""Sessions whose members are threads of this process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pynccl.weights import WeightReceiver, WeightSender
from tests.support.blocking import together

__all__ = ["NUMPY", "MemoryStore", "run", "run_numpy", "together"]

NUMPY: dict[str, Any] = {"timeout": 20, "library": "numpy"}


class MemoryStore:
    """A store for the threads of a process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self._values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


def run(
    senders: list[Callable[[WeightSender], Any]],
    receivers: list[Callable[[WeightReceiver], Any]],
    into: list[Any],
    *,
    receiver_options: dict[str, Any] | None = None,
    **options: Any,  # noqa: ANN401 - of WeightSender
) -> list[Any]:
    """Call a function with each member on a thread; the results of senders and then receivers."""
    store = MemoryStore()

    def send(rank: int) -> object:
        with WeightSender(
            store, rank=rank, senders=len(senders), receivers=len(receivers), timeout=20, **options
        ) as sender:
            return senders[rank](sender)

    def receive(number: int) -> object:
        with WeightReceiver(
            store, into[number], name=f"receiver {number}", timeout=20, **(receiver_options or {})
        ) as receiver:
            return receivers[number](receiver)

    return together(
        *(functools.partial(send, rank) for rank in range(len(senders))),
        *(functools.partial(receive, number) for number in range(len(receivers))),
    )


run_numpy = functools.partial(run, receiver_options={"library": "numpy"}, library="numpy")
