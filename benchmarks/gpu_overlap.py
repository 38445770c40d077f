"""How much of an all_reduce a matrix product hides, what the number of CTAs does to it, and why the
rest is exposed.

run() measures both apart, then together: the collective on a stream of its own, the product on the
current one. The product is repeated until it takes about as long as the collective. sweep() is that
of the overlap lab.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
import torch.distributed as dist

from benchmarks.libraries import all_gather_of
from benchmarks.timing import Figure
from benchmarks.world import World
from pynccl import nccl
from pynccl.tools import lab

__all__ = ["run", "sweep"]

_CTAS = (1, 4, 16)
_MOST_PRODUCTS = 2000


def run(world: World, repeats: int, nbytes: int, side: int) -> Iterator[Figure]:
    """Measure every way: through the mirror, torch, and communicators of few and more CTAs."""
    product = _Product(world, side)
    collective = "all_reduce" if world.nranks > 1 else "all_gather"
    send = torch.zeros(nbytes // 4, device=world.device)
    # An all_reduce of one rank does nothing; gathering from one rank copies.
    recv = send if world.nranks > 1 else torch.empty_like(send)
    ways: dict[str, Callable[[], Callable[[], object]]] = {
        "pynccl as dist": _asynchronous(world.mirror, send, recv)
    }
    if world.torch:
        ways["torch.distributed"] = _asynchronous(dist, send, recv)
    comms = []
    # NCCL_MAX_CTAS, which is set where ranks share a GPU, overrides every configuration.
    for ctas in _ctas_to_try():
        comm = world.communicator(nccl.Config(min_ctas=ctas, max_ctas=ctas))
        comms.append(comm)
        ways[f"pynccl, {ctas} CTA"] = _on_a_stream(world, comm, send, recv)
    for way, start in ways.items():
        matmul, communication, together = _measure(world, start, product, repeats)
        yield {
            "way": way,
            "collective": collective,
            "bytes": nbytes,
            "product_seconds": matmul,
            "collective_seconds": communication,
            "together_seconds": together,
            "hidden": (matmul + communication - together) / min(matmul, communication),
        }
    for comm in comms:
        comm.close()


def sweep(world: World, repeats: int, sizes: tuple[int, ...], side: int) -> Iterator[Figure]:
    """Measure every size with NCCL's choice of CTAs and with given ones; nothing with one rank.

    Args:
        world: the ranks.
        repeats: rounds of a row, 3 at least.
        sizes: of the all_reduce, in bytes.
        side: of the matrices.
    """
    if world.nranks == 1:  # an all_reduce of one rank does nothing
        return
    comm = world.communicator()
    ctas = ["default", *map(str, _ctas_to_try())] if world.provider == "cuda" else ["default"]
    choices = {"ctas": ctas, "load": [f"gemm:{side}"], "nbytes": sizes}
    for row in lab.sweep_overlaps(
        comm, lab.combinations(choices), repeats=max(3, repeats), limit=10.0
    ):
        yield {
            "collective": row.setting["collective"],
            "bytes": row.setting["nbytes"],
            "ctas": row.setting["ctas"],
            "product_seconds": row.compute.median,
            "collective_seconds": row.communication.median,
            "together_seconds": row.both.median,
            "hidden": row.hidden,
            "product_slowdown": row.compute_slowdown,
            "collective_slowdown": row.communication_slowdown,
            "verdict": str(row.verdict),
        }
    comm.close()


def _ctas_to_try() -> tuple[int, ...]:
    """The numbers of CTAs to measure with: that of NCCL's environment, else few and more."""
    text = os.environ.get("NCCL_MAX_CTAS", "")
    return (int(text),) if text.isdigit() and int(text) else _CTAS


class _Product:
    """A matrix product, repeated a given number of times."""

    def __init__(self, world: World, side: int) -> None:
        dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
        self._a = torch.randn(side, side, device=world.device).to(dtype)
        self._b = torch.randn(side, side, device=world.device).to(dtype)
        self._out = torch.empty_like(self._a)
        self.times = 1

    def __call__(self) -> None:
        for _ in range(self.times):
            torch.mm(self._a, self._b, out=self._out)


def _asynchronous(
    module: ModuleType,
    send: torch.Tensor,
    recv: torch.Tensor,
) -> Callable[[], Callable[[], object]]:
    """Start the collective by a module with torch's functions; gives what waits for it."""
    gather = all_gather_of(module)

    def start() -> Callable[[], object]:
        if recv is send:
            work = module.all_reduce(send, async_op=True)
        else:
            work = gather(recv, send, async_op=True)
        return work.wait  # type: ignore[no-any-return]

    return start


def _on_a_stream(
    world: World, comm: nccl.Communicator, send: torch.Tensor, recv: torch.Tensor
) -> Callable[[], Callable[[], object]]:
    """Start it on a stream of pynccl; its inputs are complete."""
    side = nccl.Stream(world.provider, device=world.device)

    def start() -> Callable[[], object]:
        if recv is send:
            comm.all_reduce(send, stream=side)
        else:
            comm.all_gather(send, out=recv, stream=side)
        return side.synchronize

    return start


def _measure(
    world: World,
    start: Callable[[], Callable[[], object]],
    product: _Product,
    repeats: int,
) -> tuple[float, float, float]:
    """The seconds of the product, of the collective, and of both together."""

    def communicate() -> None:
        start()()

    def together() -> None:
        finish = start()
        product()
        finish()

    for _ in range(2):
        communicate()
        world.synchronize()
    communication = _time(world, communicate, repeats)
    product.times = 1
    product()
    world.synchronize()
    once = _time(world, product, repeats)
    product.times = max(1, min(_MOST_PRODUCTS, round(communication / once)))
    matmul = _time(world, product, repeats)
    return matmul, communication, _time(world, together, repeats)


def _time(world: World, call: Callable[[], object], repeats: int) -> float:
    """Seconds until the device is done, by the host's clock: the median of maxima over ranks."""
    samples = []
    for _ in range(repeats):
        world.barrier()
        world.synchronize()
        began = time.perf_counter()
        call()
        world.synchronize()
        samples.append(time.perf_counter() - began)
    return statistics.median(world.maximum(samples))
