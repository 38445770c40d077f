"""Times training steps over pynccl's backend of torch.distributed and over gloo.

    python -m benchmarks.train
    python -m benchmarks.train --ranks 4 --steps 100

A small transformer is trained by DistributedDataParallel and by fully_shard (FSDP2), in the same
processes over both backends, whose steps alternate. A barrier precedes each step. A step's time is
the maximum over the ranks, and the table shows medians. The losses of both must agree within
rounding.

"Without communication" is the step over torch's fake backend, which moves no data between ranks.
"Communication" is the difference to it: the time to move data and to wait for it, minus the compute
that hides it. Prints the table in milliseconds, and writes all steps to a JSON file.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from benchmarks import report, timing
from benchmarks.machine import describe, inspect
from benchmarks.ranks import BenchmarkError, reasons
from benchmarks.timing import Elapsed, Figure
from pynccl.testing import LaunchError, Rank, launch
from pynccl.tools.text import list_of, positive

__all__ = ["COLUMNS", "check_losses", "main", "row"]

COLUMNS = (
    "step, gloo",
    "step, pynccl",
    "without communication",
    "communication, gloo",
    "communication, pynccl",
    "pynccl / gloo",
)
_OUT = Path(__file__).parent / "out"
_TIMEOUT = 600.0  # seconds for the processes of one number of ranks

# torch's fake backend moves no data between ranks: its step is the compute of the others.
BACKENDS = ("fake", "gloo", "pynccl")
_REAL = BACKENDS[1:]
_TOKENS = 64  # different ones
_RATE = 0.01
_TOLERANCE = 1e-3  # of losses: the backends sum in different orders, which steps amplify

Times = dict[str, list[float]]  # seconds of this rank's steps by backend
# The options and their descriptions.
_NAMES = {
    "steps": "of each backend",
    "layers": "of the model",
    "width": "of a token",
    "length": "tokens",
    "batch": "sequences",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model and the number of steps.

    Attributes:
        layers: the number of encoder layers.
        width: the number of elements of a token between the layers.
        length: the number of tokens of a sequence.
        batch: the number of sequences of a rank in a step.
        steps: the number of measured steps of each backend.
        warm: the number of steps before them.
    """

    layers: int = 4
    width: int = 256
    length: int = 32
    batch: int = 2
    steps: int = 40
    warm: int = 3


def _transformer(settings: Settings) -> nn.Sequential:
    width = settings.width
    layers = (
        nn.TransformerEncoderLayer(
            width, 4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
        )
        for _ in range(settings.layers)
    )
    return nn.Sequential(nn.Embedding(_TOKENS, width), *layers, nn.Linear(width, _TOKENS))


def _ddp(model: nn.Sequential, group: dist.ProcessGroup) -> nn.Module:
    ddp = nn.parallel.DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=True
    )
    if dist.get_backend(group) == "fake":  # DDP reads values of futures, which it lacks
        ddp.register_comm_hook(None, noop_hook)
    return ddp


def _fsdp2(model: nn.Sequential, group: dist.ProcessGroup) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in list(model)[1:-1]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WAYS: dict[str, Callable[[nn.Sequential, dist.ProcessGroup], nn.Module]] = {
    "DDP": _ddp,
    "FSDP2": _fsdp2,
}


class _Training:
    """A model with its optimizer and batches, which are the same for each backend."""

    def __init__(self, way: str, group: dist.ProcessGroup, settings: Settings, rank: int) -> None:
        torch.manual_seed(0)
        self._settings = settings
        self._model = WAYS[way](_transformer(settings), group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=_RATE)
        self._generator = torch.Generator().manual_seed(rank)

    def step(self, begin: Callable[[], None]) -> tuple[float, float]:
        """Train one step.

        Args:
            begin: called before the step, after the batch is created.

        Returns:
            The seconds and the loss of the step.
        """
        shape = (self._settings.batch, self._settings.length)
        tokens = torch.randint(_TOKENS, shape, generator=self._generator)
        begin()
        began = time.perf_counter()
        self._optimizer.zero_grad()
        logits = self._model(tokens)
        # The targets are the tokens in reverse.
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flip(1).flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return time.perf_counter() - began, loss.item()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Returns:
        The exit status.
    """
    options = _parse(argv)
    settings = Settings(**{name: getattr(options, name) for name in _NAMES})
    machine = inspect("host")
    print(describe(machine))
    print(", ".join(f"{name} {value}" for name, value in dataclasses.asdict(settings).items()))
    try:
        results = [result for nranks in options.ranks for result in _train(nranks, settings)]
    except LaunchError as error:
        print(f"error: {reasons(error)}", file=sys.stderr)
        return 1
    print("\n" + report.table([row(result) for result in results]))
    report.write_json(
        options.out / "train.json",
        [figure for result in results for figure in result],
        machine=dataclasses.asdict(machine),
        settings=dataclasses.asdict(settings),
    )
    return 0


def row(figures: Sequence[Figure]) -> Figure:
    """Return the row of a number of ranks and a way of training: milliseconds, and the ratio of the
    communication.
    """
    step = {figure["library"]: 1e3 * figure["seconds"] for figure in figures}
    gloo, ours = (step[name] - step["fake"] for name in _REAL)
    times = (step["gloo"], step["pynccl"], step["fake"], gloo, ours)
    ratio = ours / gloo if gloo > 0 else None
    named = dict(zip(COLUMNS, (*times, ratio), strict=True))
    return {"ranks": figures[0]["ranks"], "training": figures[0]["training"], **named}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train",
        description="Times training steps over pynccl's backend and over gloo.",
    )
    add = parser.add_argument
    add("--ranks", type=list_of(positive), default=(2, 4), help="world sizes (default: 2,4)")
    for name, text in _NAMES.items():
        default = getattr(Settings, name)
        add(f"--{name}", type=positive, default=default, help=f"{text} (default: %(default)s)")
    add("--out", type=Path, default=_OUT, help="folder for the JSON file (default: %(default)s)")
    return parser.parse_args(argv)


def _train(nranks: int, settings: Settings) -> list[list[Figure]]:
    """Return the figures of the backends for each way of training."""
    from pynccl.c10d.build import build

    build()  # takes longer than the ranks may wait for each other
    of_ranks = launch(
        nranks,
        _measure,
        (settings,),
        unique_ids=0,
        timeout=_TIMEOUT,
        env={"OMP_NUM_THREADS": "1"},
    )
    results = []
    for way in WAYS:
        steps = {
            name: [
                Elapsed(max(each))
                for each in zip(*(ran[way][name] for ran in of_ranks), strict=True)
            ]
            for name in BACKENDS
        }
        results.append(timing.figures(steps, lambda _: "gloo", ranks=nranks, training=way))
    return results


def _measure(rank: Rank, settings: Settings) -> dict[str, Times]:
    """Train in each way over each backend.

    Returns:
        The seconds of this rank's measured steps, by the way of training.

    Raises:
        BenchmarkError: a loss differs between the backends.
    """
    import torch.testing._internal.distributed.fake_pg  # registers the fake backend

    import pynccl.c10d  # noqa: F401 - it registers the backend

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # results of the fake backend are uninitialized
    dist.init_process_group(
        "gloo", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    try:
        groups: dict[str, Any] = {name: dist.new_group(backend=name) for name in BACKENDS}
        return {way: _measure_way(way, groups, settings, rank.rank) for way in WAYS}
    finally:
        dist.destroy_process_group()


def _measure_way(way: str, groups: dict[str, Any], settings: Settings, rank: int) -> Times:
    trainings = {name: _Training(way, group, settings, rank) for name, group in groups.items()}
    seconds: Times = {name: [] for name in trainings}

    def meet() -> None:
        dist.barrier(groups["pynccl"])

    for number in range(-settings.warm, settings.steps):
        # The first backend changes in every round.
        names = sorted(trainings, key=lambda name: (BACKENDS.index(name) + number) % len(BACKENDS))
        losses = {}
        for name in names:
            took, losses[name] = trainings[name].step(meet)
            if number >= 0:
                seconds[name].append(took)
        check_losses(way, number, losses["gloo"], losses["pynccl"])
    return seconds


def check_losses(way: str, step: int, gloo: float, ours: float) -> None:
    """Compare the losses of a step over both backends.

    Raises:
        BenchmarkError: they differ by more than rounding.
    """
    if not abs(ours - gloo) <= _TOLERANCE * abs(gloo):
        raise BenchmarkError(
            f"{way}, step {step}: the loss over pynccl is {ours}, over gloo {gloo}"
        )


if __name__ == "__main__":
    sys.exit(main())
