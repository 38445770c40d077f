"""Times weight transfers from a trainer to engines: tensor by tensor, and by pynccl.weights.

    python -m benchmarks.weights
    python -m benchmarks.weights --ranks 3 --models small,llama --repeats 5

Rank 0 sends a model to the others, which receive in place. The ranks are processes on CPUs. The
ways take turns in each repeat, so other load of the machine affects them equally. A time is that
between two barriers, and the table shows medians. Every result is checked.

* gloo: torch.distributed, a broadcast for each tensor.
* backend: the same over pynccl's backend of torch.distributed, on hostnccl.
* broadcast: the same by pynccl's mirror over hostnccl, without checksums.
* weights: pynccl.weights, with checksums and the commit of all receivers.

The models are 1,000 small tensors, some large ones, and the shapes of Llama-3-8B and Qwen3-30B-A3B
in bfloat16, with both sides of each matrix divided by --scale.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import torch.distributed
from torch._C._distributed_c10d import FileStore

import pynccl
import pynccl.c10d
from benchmarks import report, timing
from benchmarks.machine import describe, inspect
from benchmarks.timing import Elapsed
from pynccl.testing import Rank, launch
from pynccl.tools.text import list_of, one_of, positive
from pynccl.weights import WeightReceiver, WeightSender

__all__ = ["main"]

Shapes: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]

WAYS = ("weights", "gloo", "backend", "broadcast")
_WARM = 2  # repeats that are not counted


def _small(_scale: int) -> Shapes:
    for i in range(1000):
        yield f"small.{i}", (1024,)


def _large(_scale: int) -> Shapes:
    for i in range(8):
        yield f"large.{i}", (4096, 4096)


def _transformer(
    layers: int, width: int, vocabulary: int, names: Sequence[tuple[str, tuple[int, ...]]]
) -> Shapes:
    yield "embed_tokens", (vocabulary, width)
    for layer, (name, shape) in itertools.product(range(layers), names):
        yield f"layers.{layer}.{name}", shape
    yield "norm", (width,)
    yield "lm_head", (vocabulary, width)


def _llama(scale: int) -> Shapes:
    hidden, kv, inner = 4096 // scale, 1024 // scale, 14336 // scale
    names = (
        ("q_proj", (hidden, hidden)),
        ("k_proj", (kv, hidden)),
        ("v_proj", (kv, hidden)),
        ("o_proj", (hidden, hidden)),
        ("gate_proj", (inner, hidden)),
        ("up_proj", (inner, hidden)),
        ("down_proj", (hidden, inner)),
        ("input_layernorm", (hidden,)),
        ("post_attention_layernorm", (hidden,)),
    )
    return _transformer(32, hidden, 128256 // scale, names)


def _qwen(scale: int) -> Shapes:
    hidden, q, kv, inner = 2048 // scale, 4096 // scale, 512 // scale, 768 // scale
    names = [
        ("q_proj", (q, hidden)),
        ("k_proj", (kv, hidden)),
        ("v_proj", (kv, hidden)),
        ("o_proj", (hidden, q)),
        ("q_norm", (128,)),
        ("k_norm", (128,)),
        ("input_layernorm", (hidden,)),
        ("post_attention_layernorm", (hidden,)),
        ("mlp.gate", (128, hidden)),
    ]
    for expert in range(128):
        names += [
            (f"mlp.experts.{expert}.gate_proj", (inner, hidden)),
            (f"mlp.experts.{expert}.up_proj", (inner, hidden)),
            (f"mlp.experts.{expert}.down_proj", (hidden, inner)),
        ]
    return _transformer(48, hidden, 151936 // scale, names)


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
    add("--ranks", type=list_of(positive), default=(2, 3), help="a trainer, and engines (2,3)")
    names = ", ".join(MODELS)
    add("--models", type=list_of(one_of(MODELS)), default=tuple(MODELS), help=f"of {names}")
    add("--scale", type=int, default=16, help="divisor of matrices' sides (16)")
    add("--repeats", type=int, default=5, help="of each way (5)")
    arguments = parser.parse_args(argv)
    print(describe(inspect("host")) + "\n")
    rows = report.Table()
    for ranks in arguments.ranks:
        for name in arguments.models:
            times, tensors, nbytes = launch(
                ranks,
                _measure,
                (name, arguments.scale, arguments.repeats),
                timeout=600,
                env={"OMP_NUM_THREADS": "1"},
            )[0]
            about = {"model": name, "ranks": ranks, "tensors": tensors, "MB": nbytes / 1e6}
            figures = timing.figures(times, lambda _: "gloo", **about)
            for figure in figures:
                figure["ms"] = 1e3 * figure["seconds"]
            row = report.line(figures, WAYS, WAYS[1:], ["ms"])
            rows.add({**row, "GB/s": nbytes / figures[0]["seconds"] / 1e9})
    return 0


def _measure(
    rank: Rank, model: str, scale: int, repeats: int
) -> tuple[dict[str, list[Elapsed]], int, int]:
    """Return this rank's samples of each way, the number of tensors, and their bytes."""
    url, number, size = rank.init_method, rank.rank, rank.world_size
    store = FileStore(f"{url.removeprefix('file://')}-weights", size)
    torch.distributed.init_process_group(
        "gloo", init_method=f"{url}-gloo", rank=number, world_size=size
    )
    pynccl.init_process_group("host", init_method=url, rank=number, world_size=size)
    tensors = {
        name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in MODELS[model](scale)
    }
    with contextlib.ExitStack() as stack:
        if number == 0:
            sender = stack.enter_context(WeightSender(store, receivers=size - 1))
            transfer: Callable[[], object] = partial(sender.send, tensors)
        else:
            receiver = WeightReceiver(store, tensors, commit="in_place")
            transfer = stack.enter_context(receiver).receive
        timers = _timers(tensors, transfer, number == 0)
        timing.in_turns(timers, _WARM)
        times = timing.in_turns(timers, repeats)
    pynccl.destroy_process_group()
    torch.distributed.destroy_process_group()
    return times, len(tensors), sum(tensor.nbytes for tensor in tensors.values())


def _timers(
    tensors: dict[str, torch.Tensor], transfer: Callable[[], object], is_sender: bool
) -> dict[str, Callable[[], Elapsed]]:
    """Return a timer for each way, which transfers the tensors once and checks them."""
    group = torch.distributed.new_group(backend="pynccl")
    values = itertools.cycle(range(1, 201))

    def for_each(broadcast: Callable[..., object]) -> None:
        for tensor in tensors.values():
            broadcast(tensor, src=0)

    def take(way: str, run: Callable[[], object]) -> Elapsed:
        value = next(values)
        for tensor in tensors.values():
            tensor.fill_(value if is_sender else 0)
        pynccl.barrier()
        began = time.perf_counter()
        run()
        pynccl.barrier()
        seconds = time.perf_counter() - began
        if not all(bool((tensor == value).all()) for tensor in tensors.values()):
            raise SystemExit(f"{way}: wrong values")
        return Elapsed(seconds)

    by_group = partial(torch.distributed.broadcast, group=group)
    ways: dict[str, Callable[[], object]] = {
        "weights": transfer,
        "gloo": partial(for_each, torch.distributed.broadcast),
        "backend": partial(for_each, by_group),
        "broadcast": partial(for_each, pynccl.broadcast),
    }
    return {way: partial(take, way, run) for way, run in ways.items()}


if __name__ == "__main__":
    sys.exit(main())
