"""Interrupts a receiver at random points of its commits, and checks that no version is torn.

    python -m tests.weights.interrupts --count 2000 --seed 0

A commit is interrupted between any two instructions of the functions that commit, which are the
points at which Python handles a signal. After each:

* if ``is_whole`` is True, all tensors are those of ``version``, else ``version`` is None;
* a receiver that the sender's report names as one that has committed has the version;
* the next version that is not interrupted is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import torch

from pynccl.weights import Report, WeightReceiver, WeightSender, WeightsError
from pynccl.weights.target import Commit, Target
from tests.support.blocking import wait_until
from tests.weights.sessions import MemoryStore

__all__ = ["run"]

LIMIT = 60.0  # seconds, of the sessions
COMMITS: tuple[Commit, ...] = ("copy", "copy", "in_place", "swap")  # most interrupts in a copy
TENSORS = 40
SIZE = 1000  # elements of each
_MODULES = ("target.py", "receiver.py", "follower.py", "memory.py")


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but a failed check does not end the program."""


def model(version: int) -> dict[str, torch.Tensor]:
    return {f"t{i}": torch.full((SIZE,), version, dtype=torch.int32) for i in range(TENSORS)}


class Interrupter:
    """Interrupts the next commit of this thread at a random point.

    Args:
        chance: a generator.
        instructions: that a commit has.

    Attributes:
        instructions: of the commit.
        is_done: whether it was interrupted.
    """

    def __init__(self, chance: random.Random, instructions: int) -> None:
        self._last = chance.randrange(int(1.1 * instructions) + 1)
        self.instructions = 0
        self.is_done = False

    def __enter__(self) -> Interrupter:
        self._commit = Target.commit

        def commit(one: Target, version: int) -> None:
            sys.settrace(self._trace)
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                if frame.f_code.co_filename.endswith(_MODULES):
                    frame.f_trace, frame.f_trace_opcodes = self._trace, True
                frame = frame.f_back
            self._commit(one, version)

        Target.commit = commit  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        Target.commit = self._commit  # type: ignore[method-assign]

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401
        if self.is_done or not frame.f_code.co_filename.endswith(_MODULES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.instructions += 1
            if self.instructions > self._last:
                sys.settrace(None)
                self.is_done = True
                raise Interrupt
        return self._trace


def check(receiver: WeightReceiver) -> None:
    """Raise AssertionError if the receiver reports a torn version as whole."""
    version = receiver.version
    assert receiver.is_whole == (version is not None)
    if version is not None:
        torn = [name for name, t in receiver.tensors.items() if not bool((t == version).all())]
        assert not torn, f"version {version} is said to be whole, and {torn} differ"


def run(count: int, seed: int) -> Counter[str]:
    """Interrupt commits.

    Args:
        count: how many.
        seed: of the points.

    Returns:
        How often each outcome was seen.
    """
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number, commit in enumerate(COMMITS):
        share = count * (number + 1) // len(COMMITS) - count * number // len(COMMITS)
        outcomes += _session(share, commit, chance)
    return outcomes


def _session(count: int, commit: Commit, chance: random.Random) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    store = MemoryStore()
    into = None if commit == "swap" else model(0)
    with (
        WeightSender(store, timeout=LIMIT) as sender,
        WeightReceiver(store, into, commit=commit, name="engine", timeout=LIMIT) as receiver,
        ThreadPoolExecutor(1) as pool,
    ):
        version, interrupts = 0, 0
        instructions = 1 << 30  # not known: the first commit is not interrupted
        while interrupts < count:
            version += 1
            interrupter = Interrupter(chance, instructions)
            sending = pool.submit(_send, sender, version)
            with interrupter, contextlib.suppress(Interrupt):
                receiver.receive()
            error = sending.exception(2 * LIMIT)
            check(receiver)
            if error is None:
                assert sending.result().receivers == ("engine",)
                assert receiver.version == version
            else:
                assert isinstance(error, WeightsError), error
            interrupts += interrupter.is_done
            if not interrupter.is_done:
                assert receiver.version == version
                instructions = interrupter.instructions
            torn = "whole" if receiver.is_whole else "torn and said so"
            outcomes[f"{commit}: {torn if interrupter.is_done else 'not interrupted'}"] += 1
            if interrupter.is_done:
                version += 1
                sending = pool.submit(_send, sender, version, int(receiver._follower.has_left))
                assert receiver.receive(LIMIT).version == version
                assert sending.result(LIMIT).receivers == ("engine",)
                assert receiver.version == version
                check(receiver)
    return outcomes


def _send(sender: WeightSender, version: int, waiting: int = 0) -> Report:
    """Send a version once this many receivers wait to join."""
    wait_until(lambda: sender.waiting() >= waiting, LIMIT)
    return sender.send(model(version), version=version)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="interrupts")
    parser.add_argument("--seed", type=int, default=0, help="of the random points")
    arguments = parser.parse_args()
    for outcome, number in sorted(run(arguments.count, arguments.seed).items()):
        print(f"{number:6} {outcome}")
    print(f"{arguments.count} interrupts, no torn version that is said to be whole")


if __name__ == "__main__":
    main()
