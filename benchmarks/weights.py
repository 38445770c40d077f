"""Weights from a trainer to engines: tensor by tensor, and by pynccl.weights.

    python -m benchmarks.weights
    python -m benchmarks.weights --ranks 3 --models small,llama --repeats 5

Rank 0 sends a model to the others, which receive in place; processes on CPUs. In each repeat all
ways take turns, so that they meet the same load of the machine. A time is from a barrier before to
the end of all ranks; the table has medians. The result of each way is checked before it is timed.

* gloo: torch.distributed, a broadcast for each tensor.
* backend: the same over pynccl's backend of torch.distributed, on hostnccl.
* broadcast: pynccl's mirror of it over hostnccl, a broadcast for each tensor: no checksums.
* weights: pynccl.weights: with checksums, and the commit of all receivers.

The models are 1,000 small tensors, some large ones, and the shapes of Llama-3-8B and Qwen3-30B-A3B
in bfloat16, with both sides of each matrix divided by --scale.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import machine
from benchmarks.weights_rank import MODELS, WAYS, Times, measure
from pynccl.testing import launch

__all__ = ["main", "table"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description="weights from a trainer to engines")
    parser.add_argument("--ranks", default="2,3", help="world sizes: a trainer, and engines (2,3)")
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--scale", type=int, default=16, help="divisor of matrices' sides (16)")
    parser.add_argument("--repeats", type=int, default=5, help="of each way (5)")
    arguments = parser.parse_args(argv)
    names = arguments.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models: {unknown[0]!r} is not one of {', '.join(MODELS)}")
    for name, value in machine.rows(machine.inspect("host")):
        print(f"{name}: {value}")
    print("\n" + "\n".join(_HEAD), flush=True)
    for ranks in map(int, arguments.ranks.split(",")):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                times, tensors, nbytes = launch(
                    ranks,
                    measure,
                    (folder, name, arguments.scale, arguments.repeats),
                    timeout=600,
                    env={"OMP_NUM_THREADS": "1"},
                )[0]
            print(table(ranks, name, times, tensors, nbytes), flush=True)
    return 0


_HEAD = (
    "| ranks | model | tensors | MB | "
    + " | ".join(f"{way}, ms" for way in WAYS)
    + " | weights, GB/s | faster than gloo | than the backend | than broadcast |",
    "|---" * (8 + len(WAYS)) + "|",
)


def table(ranks: int, name: str, times: Times, tensors: int, nbytes: int) -> str:
    """A row in Markdown."""
    medians = {way: statistics.median(times[way]) for way in WAYS}
    cells = [str(ranks), name, str(tensors), f"{nbytes / 1e6:.1f}"]
    cells += [f"{medians[way] * 1e3:.1f}" for way in WAYS]
    cells.append(f"{nbytes / medians['weights'] / 1e9:.2f}")
    cells += [f"{medians[way] / medians['weights']:.1f}x" for way in WAYS[:-1]]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
