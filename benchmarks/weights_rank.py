"""What a rank does for benchmarks.weights: the models, and the ways to send them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed
from torch._C._distributed_c10d import FileStore

import pynccl
import pynccl.c10d
from pynccl.testing import Rank
from pynccl.weights import WeightReceiver, WeightSender

__all__ = ["MODELS", "WAYS", "Times", "measure"]

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


def measure(
    rank: Rank, folder: str, model: str, scale: int, repeats: int
) -> tuple[Times, int, int]:
    """Seconds of each way on this rank; the number of tensors, and their bytes."""
    store = FileStore(str(Path(folder, "weights")), rank.world_size)
    number, size = rank.rank, rank.world_size
    url = f"file://{folder}"
    torch.distributed.init_process_group(
        "gloo", init_method=f"{url}/gloo", rank=number, world_size=size
    )
    pynccl.init_process_group("host", init_method=f"{url}/pynccl", rank=number, world_size=size)
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
