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
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch.distributed
from torch._C._distributed_c10d import FileStore

import pynccl
import pynccl.c10d
from benchmarks import machine
from benchmarks.options import positive, tuple_of
from pynccl.testing import Rank, launch
from pynccl.weights import WeightReceiver, WeightSender

__all__ = ["main", "table"]

Times: TypeAlias = dict[str, list[float]]
Shapes: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]

WAYS = ("gloo", "backend", "broadcast", "weights")
_WARM = 2  # repeats that are not counted


def _small(_scale: int) -> Shapes:
    for i in range(1000):
        yield f"small.{i}", (1024,)


def _large(_scale: int) -> Shapes:
    for i in range(8):
        yield f"large.{i}", (4096, 4096)


def _llama(scale: int) -> Shapes:
    hidden, kv, inner, vocabulary = 4096 // scale, 1024 // scale, 14336 // scale, 128256 // scale
    yield "embed_tokens", (vocabulary, hidden)
    for layer in range(32):
        for name, shape in (
            ("q_proj", (hidden, hidden)),
            ("k_proj", (kv, hidden)),
            ("v_proj", (kv, hidden)),
            ("o_proj", (hidden, hidden)),
            ("gate_proj", (inner, hidden)),
            ("up_proj", (inner, hidden)),
            ("down_proj", (hidden, inner)),
            ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
        ):
            yield f"layers.{layer}.{name}", shape
    yield "norm", (hidden,)
    yield "lm_head", (vocabulary, hidden)


def _qwen(scale: int) -> Shapes:
    hidden, q, kv, vocabulary = 2048 // scale, 4096 // scale, 512 // scale, 151936 // scale
    inner = 768 // scale
    yield "embed_tokens", (vocabulary, hidden)
    for layer in range(48):
        for name, shape in (
            ("q_proj", (q, hidden)),
            ("k_proj", (kv, hidden)),
            ("v_proj", (kv, hidden)),
            ("o_proj", (hidden, q)),
            ("q_norm", (128,)),
            ("k_norm", (128,)),
            ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
            ("mlp.gate", (128, hidden)),
        ):
            yield f"layers.{layer}.{name}", shape
        for expert in range(128):
            for name, shape in (
                ("gate_proj", (inner, hidden)),
                ("up_proj", (inner, hidden)),
                ("down_proj", (hidden, inner)),
            ):
                yield f"layers.{layer}.mlp.experts.{expert}.{name}", shape
    yield "norm", (hidden,)
    yield "lm_head", (vocabulary, hidden)


MODELS: dict[str, Callable[[int], Shapes]] = {
    "small": _small,
    "large": _large,
    "llama": _llama,
    "qwen": _qwen,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description="weights from a trainer to engines")
    add = parser.add_argument
    add("--ranks", type=tuple_of(positive), default=(2, 3), help="a trainer, and engines (2,3)")
    names = ", ".join(MODELS)
    add("--models", type=tuple_of(str, MODELS), default=tuple(MODELS), help=f"of {names}")
    add("--scale", type=int, default=16, help="divisor of matrices' sides (16)")
    add("--repeats", type=int, default=5, help="of each way (5)")
    arguments = parser.parse_args(argv)
    for name, value in machine.rows(machine.inspect("host")):
        print(f"{name}: {value}")
    print("\n" + "\n".join(_HEAD), flush=True)
    for ranks in arguments.ranks:
        for name in arguments.models:
            times, tensors, nbytes = launch(
                ranks,
                _measure,
                (name, arguments.scale, arguments.repeats),
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


def _measure(rank: Rank, model: str, scale: int, repeats: int) -> tuple[Times, int, int]:
    """Seconds of each way on this rank; the number of tensors, and their bytes."""
    url, number, size = rank.init_method, rank.rank, rank.world_size
    store = FileStore(f"{url.removeprefix('file://')}-weights", size)
    torch.distributed.init_process_group(
        "gloo", init_method=f"{url}-gloo", rank=number, world_size=size
    )
    pynccl.init_process_group("host", init_method=url, rank=number, world_size=size)
    tensors = {
        name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in MODELS[model](scale)
    }
    if rank.rank == 0:
        with WeightSender(store, receivers=rank.world_size - 1) as sender:
            times = _take_turns(tensors, lambda: sender.send(tensors), True, repeats)
    else:
        with WeightReceiver(store, tensors, commit="in_place") as receiver:
            times = _take_turns(tensors, receiver.receive, False, repeats)
    pynccl.destroy_process_group()
    torch.distributed.destroy_process_group()
    return times, len(tensors), sum(tensor.nbytes for tensor in tensors.values())


def _take_turns(
    tensors: dict[str, torch.Tensor],
    transfer: Callable[[], object],
    is_sender: bool,
    repeats: int,
) -> Times:
    def by_gloo() -> None:
        for tensor in tensors.values():
            torch.distributed.broadcast(tensor, src=0)

    group = torch.distributed.new_group(backend="pynccl")

    def by_backend() -> None:
        for tensor in tensors.values():
            torch.distributed.broadcast(tensor, src=0, group=group)

    def by_broadcast() -> None:
        for tensor in tensors.values():
            pynccl.broadcast(tensor, src=0)

    ways = dict(zip(WAYS, (by_gloo, by_backend, by_broadcast, transfer), strict=True))
    times: Times = {way: [] for way in WAYS}
    for repeat in range(_WARM + repeats):
        for number, (way, run) in enumerate(ways.items()):
            value = 1 + (7 * repeat + number) % 200
            for tensor in tensors.values():
                tensor.fill_(value if is_sender else 0)
            pynccl.barrier()
            began = time.perf_counter()
            run()
            pynccl.barrier()
            seconds = time.perf_counter() - began
            if not all(bool((tensor == value).all()) for tensor in tensors.values()):
                raise SystemExit(f"{way}: wrong values")
            if repeat >= _WARM:
                times[way].append(seconds)
    return times


if __name__ == "__main__":
    sys.exit(main())
