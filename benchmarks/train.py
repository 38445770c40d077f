"""Times training steps over pynccl's backend of torch.distributed and over gloo.

    python -m benchmarks.train
    python -m benchmarks.train --ranks 4 --steps 100

A small transformer is trained by DistributedDataParallel and by fully_shard (FSDP2), in the same
processes over both backends, whose steps alternate. Before each step the ranks meet. A step's time
is the maximum over the ranks, and the table has the medians of the steps. The losses of both must
be equal, but for rounding.

"Without communication" is the step over torch's fake backend, which moves no data between ranks.
The time in communication is the difference to that: what the ranks spend on moving data and on
waiting for it, less what they compute meanwhile.
Prints the table in milliseconds and writes all steps to a JSON file.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from benchmarks import machine, report
from benchmarks.engines import engine
from benchmarks.options import positive, tuple_of
from benchmarks.ranks import BenchmarkError, describe
from pynccl.testing import LaunchError, Rank, launch

__all__ = ["COLUMNS", "Result", "check_losses", "main", "table"]

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

# torch's fake backend moves nothing between ranks: its step has the computation of the others.
BACKENDS = ("fake", "gloo", "pynccl")
_REAL = BACKENDS[1:]
_TOKENS = 64  # different ones
_RATE = 0.01
_TOLERANCE = 1e-3  # of losses: the backends sum in different orders, which steps amplify

# Seconds of this rank's steps, by the way of training and the backend.
Times = dict[str, dict[str, list[float]]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is trained.

    Attributes:
        layers: of the encoder.
        width: elements of a token between the layers.
        length: tokens of a sequence.
        batch: sequences of a rank in a step.
        steps: that are measured, of each backend.
        warm: steps before them.
    """

    layers: int = 4
    width: int = 256
    length: int = 32
    batch: int = 2
    steps: int = 40
    warm: int = 3


class _Transformer(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.embedding = nn.Embedding(_TOKENS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
            )
            for _ in range(settings.layers)
        )
        self.head = nn.Linear(width, _TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def _ddp(model: _Transformer, group: dist.ProcessGroup) -> nn.Module:
    ddp = nn.parallel.DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=True
    )
    if dist.get_backend(group) == "fake":  # whose futures have no value, which DDP reads
        ddp.register_comm_hook(None, noop_hook)
    return ddp


def _fsdp2(model: _Transformer, group: dist.ProcessGroup) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WAYS: dict[str, Callable[[_Transformer, dist.ProcessGroup], nn.Module]] = {
    "DDP": _ddp,
    "FSDP2": _fsdp2,
}


class _Training:
    """A model with its optimizer and its batches, which are the same for each backend."""

    def __init__(self, way: str, group: dist.ProcessGroup, settings: Settings, rank: int) -> None:
        torch.manual_seed(0)
        self._settings = settings
        self._model = WAYS[way](_Transformer(settings), group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=_RATE)
        self._generator = torch.Generator().manual_seed(rank)

    def step(self, begin: Callable[[], None]) -> tuple[float, float]:
        """A step.

        Args:
            begin: called before, when the batch is there.

        Returns:
            Its seconds and its loss.
        """
        shape = (self._settings.batch, self._settings.length)
        tokens = torch.randint(_TOKENS, shape, generator=self._generator)
        begin()
        began = time.perf_counter()
        self._optimizer.zero_grad()
        logits = self._model(tokens)
        # What to find out: the tokens in reverse.
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flip(1).flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return time.perf_counter() - began, loss.item()


@dataclasses.dataclass(frozen=True)
class Result:
    """One way of training on one number of ranks.

    Attributes:
        seconds: of each step, by backend; the maximum over the ranks.
        loss: the last one of rank 0 over pynccl.
        engines: of torch.distributed, by backend.
    """

    nranks: int
    way: str
    seconds: dict[str, list[float]]
    loss: float
    engines: dict[str, str]

    def step(self, backend: str) -> float:
        """The median of the steps in seconds."""
        return statistics.median(self.seconds[backend])

    def communication(self, backend: str) -> float:
        """How much longer the step takes than without communication, in seconds."""
        return self.step(backend) - self.step("fake")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Returns:
        The exit status.
    """
    options = _parse(argv)
    names = ("layers", "width", "length", "batch", "steps")
    settings = Settings(**{name: getattr(options, name) for name in names})
    facts = machine.rows(machine.inspect("host"))
    print("\n".join(f"{name}: {value}" for name, value in facts))
    print(", ".join(f"{name} {value}" for name, value in dataclasses.asdict(settings).items()))
    try:
        results = [result for nranks in options.ranks for result in _train(nranks, settings)]
    except LaunchError as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        return 1
    print(f"torch.distributed over {', '.join(results[0].engines.values())}")
    print("\n" + table(results))
    report.write_json(
        options.out / "train.json",
        [dataclasses.asdict(result) for result in results],
        machine=dict(facts),
        settings=dataclasses.asdict(settings),
    )
    return 0


def table(results: Sequence[Result]) -> str:
    """A table in Markdown: milliseconds, and the ratio of the communication."""
    rows = []
    for result in results:
        gloo, ours = (result.communication(name) for name in ("gloo", "pynccl"))
        times = [*(result.step(name) for name in ("gloo", "pynccl", "fake")), gloo, ours]
        cells = [f"{seconds * 1e3:.2f}" for seconds in times]
        cells.append(f"{ours / gloo:.2f}" if gloo > 0 else "")
        named = dict(zip(COLUMNS, cells, strict=True))
        rows.append({"ranks": result.nranks, "training": result.way, **named})
    return report.table(rows)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train",
        description="Times training steps over pynccl's backend and over gloo.",
    )
    add = parser.add_argument
    default = Settings()
    add("--ranks", type=tuple_of(positive), default=(2, 4), help="world sizes (default: 2,4)")
    add("--steps", type=int, default=default.steps, help="of each backend (default: %(default)s)")
    add("--layers", type=int, default=default.layers, help="of the model (default: %(default)s)")
    add("--width", type=int, default=default.width, help="of a token (default: %(default)s)")
    add("--length", type=int, default=default.length, help="tokens (default: %(default)s)")
    add("--batch", type=int, default=default.batch, help="sequences (default: %(default)s)")
    add("--out", type=Path, default=_OUT, help="folder for the JSON file (default: %(default)s)")
    return parser.parse_args(argv)


def _train(nranks: int, settings: Settings) -> list[Result]:
    """The ways of training on a number of ranks."""
    from pynccl.c10d.build import build

    build()  # takes longer than the ranks may wait for each other
    of_ranks: list[tuple[Times, Times, dict[str, str]]] = launch(
        nranks,
        _measure,
        (settings,),
        unique_ids=0,
        timeout=_TIMEOUT,
        env={"OMP_NUM_THREADS": "1"},
    )
    results = []
    for way in WAYS:
        seconds = {
            name: [max(step) for step in zip(*(ran[0][way][name] for ran in of_ranks), strict=True)]
            for name in BACKENDS
        }
        _, losses, engines = of_ranks[0]
        results.append(Result(nranks, way, seconds, losses[way]["pynccl"][-1], engines))
    return results


def _measure(rank: Rank, settings: Settings) -> tuple[Times, Times, dict[str, str]]:
    """Train in each way over each backend.

    Args:
        rank: this rank.
        settings: what to train.

    Returns:
        The seconds of the measured steps, their losses without those of the fake backend, and the
        engine of torch.distributed behind each backend.

    Raises:
        BenchmarkError: a loss differs between the backends.
    """
    import torch.testing._internal.distributed.fake_pg  # registers the fake backend

    import pynccl.c10d  # noqa: F401 - it registers the backend

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # the fake backend leaves any numbers in its results
    dist.init_process_group(
        "gloo", init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    try:
        groups: dict[str, Any] = {name: dist.new_group(backend=name) for name in BACKENDS}
        seconds: Times = {}
        losses: Times = {}
        for way in WAYS:
            seconds[way], losses[way] = _measure_way(way, groups, settings, rank.rank)
        cpu = torch.device("cpu")
        return seconds, losses, {name: engine(group, cpu) for name, group in groups.items()}
    finally:
        dist.destroy_process_group()


def _measure_way(
    way: str, groups: dict[str, Any], settings: Settings, rank: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    trainings = {name: _Training(way, group, settings, rank) for name, group in groups.items()}
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    losses: dict[str, list[float]] = {name: [] for name in _REAL}

    def meet() -> None:
        dist.barrier(groups["pynccl"])

    for number in range(-settings.warm, settings.steps):
        # Another one is first in every round.
        names = sorted(trainings, key=lambda name: (BACKENDS.index(name) + number) % len(BACKENDS))
        for name in names:
            took, loss = trainings[name].step(meet)
            if name in losses:
                losses[name].append(loss)
            if number >= 0:
                seconds[name].append(took)
        check_losses(way, number, losses["gloo"][-1], losses["pynccl"][-1])
    return seconds, losses


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
