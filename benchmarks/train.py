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
import datetime
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.ranks import describe
from benchmarks.train_rank import BACKENDS, WAYS, Settings, Times, measure
from pynccl.testing import LaunchError, launch

__all__ = ["COLUMNS", "Result", "main", "table"]

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
        results = [result for nranks in options.ranks for result in _measure(nranks, settings)]
    except LaunchError as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        return 1
    print(f"torch.distributed over {', '.join(results[0].engines.values())}")
    print("\n" + "\n".join(table(results)))
    options.out.mkdir(parents=True, exist_ok=True)
    content = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "machine": dict(facts),
        "settings": dataclasses.asdict(settings),
        "rows": [dataclasses.asdict(result) for result in results],
    }
    path = options.out / "train.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {path}")
    return 0


def table(results: Sequence[Result]) -> list[str]:
    """The lines of a table in Markdown: milliseconds, and the ratio of the communication."""
    lines = [
        "| ranks | training | " + " | ".join(COLUMNS) + " |",
        "|---|---" + "|---:" * len(COLUMNS) + "|",
    ]
    for result in results:
        gloo, ours = (result.communication(name) for name in ("gloo", "pynccl"))
        times = [*(result.step(name) for name in ("gloo", "pynccl", "fake")), gloo, ours]
        cells = [f"{seconds * 1e3:.2f}" for seconds in times]
        ratio = f"{ours / gloo:.2f}" if gloo > 0 else ""
        lines.append(f"| {result.nranks} | {result.way} | {' | '.join(cells)} | {ratio} |")
    return lines


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train",
        description="Times training steps over pynccl's backend and over gloo.",
    )
    add = parser.add_argument
    default = Settings()
    add("--ranks", type=_numbers, default=[2, 4], help="world sizes (default: 2,4)")
    add("--steps", type=int, default=default.steps, help="of each backend (default: %(default)s)")
    add("--layers", type=int, default=default.layers, help="of the model (default: %(default)s)")
    add("--width", type=int, default=default.width, help="of a token (default: %(default)s)")
    add("--length", type=int, default=default.length, help="tokens (default: %(default)s)")
    add("--batch", type=int, default=default.batch, help="sequences (default: %(default)s)")
    add("--out", type=Path, default=_OUT, help="folder for the JSON file (default: %(default)s)")
    return parser.parse_args(argv)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _measure(nranks: int, settings: Settings) -> list[Result]:
    """The ways of training on a number of ranks."""
    from pynccl.c10d.build import build

    build()  # takes longer than the ranks may wait for each other
    with tempfile.TemporaryDirectory(prefix="pynccl-train-") as folder:
        of_ranks: list[tuple[Times, Times, dict[str, str]]] = launch(
            nranks,
            measure,
            (f"file://{folder}/store", settings),
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


if __name__ == "__main__":
    sys.exit(main())
