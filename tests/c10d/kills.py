"""Kills ranks in the middle of training: python -m tests.c10d.kills --kills 300.

In each trial a rank of a world gets SIGKILL at a random moment. The survivors must get an error and
continue without it from the last step that all of them have completed. From there on, losses,
gradients and parameters must be bitwise identical to those of an undisturbed world of that size,
for DistributedDataParallel and FSDP2.
"""

from __future__ import annotations

import argparse
import collections
import functools
import hashlib
import importlib
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import SHRINK_ABORT
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import pynccl.c10d  # noqa: F401 - registers the backend
from pynccl.c10d.build import build
from tests.c10d.training import batches, make_model
from tests.reliability.workers import Lane, Member

__all__ = ["Trial", "run"]

_STEPS = 24  # maximum, before the kill is detected
_LATEST = 8  # step that the victim completes before it is killed
_AFTER = 3  # steps without the victim
_LONGEST = 0.03  # seconds from the end of that step to the kill
_NOTICED = 10.0  # seconds within which every survivor must have an error, on a busy machine
_STUCK = 60.0
_TIMEOUT = timedelta(seconds=40)  # of the operations; no error may depend on it

State: TypeAlias = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trial:
    """Attributes:
    number: number of the trial, and seed of the other attributes.
    kind: "ddp" or "fsdp2".
    recovery: "shrink" continues with torch's shrink_group, "restart" with a new world.
    step: the step after which the victim is killed.
    delay: seconds from the end of that step to the kill.
    """

    number: int
    kind: str
    recovery: str
    nranks: int
    victim: int
    step: int
    delay: float

    @classmethod
    def of(cls, seed: int, number: int) -> Trial:
        chance = random.Random(f"{seed} {number}")
        kind = chance.choice(("ddp", "fsdp2"))
        nranks = chance.choice((2, 3, 4))
        return cls(
            number,
            kind,
            chance.choice(("shrink", "restart")) if kind == "ddp" else "restart",
            nranks,
            chance.randrange(nranks),
            chance.randrange(_LATEST),
            chance.uniform(0, _LONGEST),
        )


@dataclass
class Result:
    """The report of a survivor: digests of the steps before and after, and its error."""

    before: list[str]
    error: str
    raised: float  # when, by the clock of the machine
    agreed: int  # the step that all continue from
    after: list[str]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


class _Trainer:
    """A model of this rank with the state of an earlier one."""

    def __init__(self, kind: str, state: State | None = None) -> None:
        self._model = make_model()
        if state is not None:
            self._model.load_state_dict({k: v for k, v in state.items() if k[0].isdigit()})
        self._net: nn.Module = self._model
        if kind == "ddp":
            self._net = nn.parallel.DistributedDataParallel(self._model)
        else:
            for layer in self._model.children():
                if isinstance(layer, nn.Linear):
                    fully_shard(layer)
            fully_shard(self._model)
        momentum = 0.9 if kind == "ddp" else 0.0
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=momentum)
        if state is not None and momentum:
            for name, parameter in self._model.named_parameters():
                if f"momentum {name}" in state:
                    buffer = state[f"momentum {name}"].clone()
                    self._optimizer.state[parameter]["momentum_buffer"] = buffer

    def step(self, number: int) -> tuple[str, State]:
        """Train one step; a digest of its loss, gradients and parameters, and the state."""
        ((inputs, targets),) = batches(1000 * number + dist.get_rank(), 1)
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._net(inputs), targets)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        gradients = [_whole(p.grad) for p in self._model.parameters() if p.grad is not None]
        self._optimizer.step()
        state: State = {}
        for name, parameter in self._model.named_parameters():
            state[name] = _whole(parameter)
            buffer = self._optimizer.state[parameter].get("momentum_buffer")
            if buffer is not None:
                state[f"momentum {name}"] = _whole(buffer)
        digest = hashlib.sha256()
        for tensor in (total, *gradients, *state.values()):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest(), state


def _join(member: Member, rank: int, size: int) -> None:
    url = f"{member.init_method}{size}"  # no other world of the launch has as many ranks
    dist.init_process_group("pynccl", init_method=url, rank=rank, world_size=size, timeout=_TIMEOUT)


def _live(member: Member, trial: Trial) -> Result:
    """A rank of a trial."""
    rank = member.rank
    _join(member, rank, trial.nranks)
    trainer = _Trainer(trial.kind)
    before: list[str] = []
    states: list[State | None] = [None]
    error = None
    try:
        for number in range(_STEPS):
            digest, state = trainer.step(number)
            before.append(digest)
            states.append(state)
            if rank == trial.victim:
                member.report(number)
        if rank == trial.victim:  # the test was not scheduled in time
            member.sleep_for_ever()
        dist.all_reduce(torch.ones(1))
    except RuntimeError as caught:  # the backend's error, for any operation
        error = f"{type(caught).__name__}: {caught}"
    raised = time.monotonic()
    if error is None:
        raise AssertionError("no operation has failed")
    if trial.recovery == "shrink":
        dist.shrink_group([trial.victim], shrink_flags=SHRINK_ABORT)
    else:
        dist.distributed_c10d._get_default_group().abort()
        dist.destroy_process_group()
        _join(member, rank - (rank > trial.victim), trial.nranks - 1)
    agreed = torch.tensor([len(before)])
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    trainer = _Trainer(trial.kind, states[int(agreed)])
    after = [trainer.step(100 + number)[0] for number in range(_AFTER)]
    dist.destroy_process_group()
    return Result(before, error, raised, int(agreed), after)


def _train_undisturbed(member: Member, kind: str) -> tuple[list[str], list[State]]:
    _join(member, member.rank, member.nranks)
    trainer = _Trainer(kind)
    steps = [trainer.step(number) for number in range(_STEPS)]
    dist.destroy_process_group()
    return [digest for digest, _ in steps], [state for _, state in steps]


def _continue_undisturbed(member: Member, kind: str, state: State | None) -> list[str]:
    _join(member, member.rank, member.nranks)
    trainer = _Trainer(kind, state)
    digests = [trainer.step(100 + number)[0] for number in range(_AFTER)]
    dist.destroy_process_group()
    return digests


def _run_all(nranks: int, function: Callable[..., Any], *args: object) -> Any:
    """The result of all ranks, which must be the same."""
    with Lane() as lane, lane.world(nranks, function, *args) as world:
        results = world.join(range(nranks), _STUCK)
    digests = [result[0] if isinstance(result, tuple) else result for result in results]
    assert all(digest == digests[0] for digest in digests), "the ranks differ without a kill"
    return results[0]


@functools.cache
def _undisturbed(kind: str, nranks: int) -> tuple[list[str], list[Any]]:
    """Digests of every step, and the states before and after each."""
    digests, states = _run_all(nranks, _train_undisturbed, kind)
    return digests, [None, *states]


@functools.cache
def _undisturbed_after(kind: str, nranks: int, agreed: int) -> list[str]:
    """Digests of the steps without one rank, after a number of steps with all."""
    _, states = _undisturbed(kind, nranks)
    digests: list[str] = _run_all(nranks - 1, _continue_undisturbed, kind, states[agreed])
    return digests


def run(trial: Trial) -> str | None:
    """Run a trial; return what went wrong."""
    before, _ = _undisturbed(trial.kind, trial.nranks)
    survivors = [rank for rank in range(trial.nranks) if rank != trial.victim]
    try:
        with Lane() as lane, lane.world(trial.nranks, _live, trial) as world:
            world.gather([trial.victim], trial.step, _STUCK)
            time.sleep(trial.delay)
            killed = world.signal(trial.victim, signal.SIGKILL)
            results: list[Result] = world.join(survivors, _STUCK)
        for rank, result in zip(survivors, results, strict=True):
            who = f"rank {rank}"
            took = result.raised - killed
            assert took < _NOTICED, f"{who} had its error after {took:.1f} s: {result.error}"
            steps = len(result.before)
            assert result.before == before[:steps], f"{who} computed something else before"
            assert result.agreed == min(len(r.before) for r in results), f"{who} disagrees"
            after = _undisturbed_after(trial.kind, trial.nranks, result.agreed)
            assert result.after == after, f"{who} computed something else after"
    except AssertionError as error:
        return f"{trial}: {error}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    options = parser.parse_args()
    build()  # takes longer than a rank may
    began = time.monotonic()
    trials = [Trial.of(options.seed, options.first + i) for i in range(options.kills)]
    failures = 0
    for number, trial in enumerate(trials, 1):
        if problem := run(trial):
            failures += 1
            print(problem, flush=True)
        if number % 25 == 0:
            print(
                f"{number} kills, {failures} failed, {time.monotonic() - began:.0f} s", flush=True
            )
    kinds = collections.Counter(f"{trial.kind} {trial.recovery}" for trial in trials)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(importlib.import_module("tests.c10d.kills").main())
