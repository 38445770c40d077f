"""How much of a collective a matrix product hides, what the number of CTAs does to it, and why the
rest is exposed.

run() measures both apart and together, with the collective on a stream of its own, the product on
the current one; the product is repeated until it takes about as long as the collective. sweep() is
that of the overlap lab.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import timing
from benchmarks.libraries import Call, all_gather_of
from benchmarks.timing import Elapsed, Figure, Timer
from benchmarks.world import World
from pynccl import nccl
from pynccl.tools import lab

__all__ = ["run", "sweep"]

_CTAS = (1, 4, 16)
_MOST_PRODUCTS = 2000


def run(world: World, repeats: int, nbytes: int, side: int) -> Iterator[Figure]:
    """Measure the collective through the mirror, torch, and the communicator on a stream."""
    product = _Product(world, side)
    send = torch.zeros(nbytes // 4, device=world.device)
    recv = send if world.nranks > 1 else torch.empty_like(send)
    stream = nccl.Stream(world.provider, device=world.device)

    def start(module: Any) -> Call:  # noqa: ANN401 two modules alike
        """Start the collective; gives what waits for it."""
        if recv is send:
            work = module.all_reduce(send, async_op=True)
        else:
            work = all_gather_of(module)(recv, send, async_op=True)
        return work.wait  # type: ignore[no-any-return]

    def start_on_stream() -> Call:
        if recv is send:
            world.comm.all_reduce(send, stream=stream)
        else:
            world.comm.all_gather(send, out=recv, stream=stream)
        return stream.synchronize

    ways: dict[str, Callable[[], Call]] = {"pynccl as dist": partial(start, world.mirror)}
    if world.torch:
        ways["torch.distributed"] = partial(start, dist)
    ways["pynccl Communicator"] = start_on_stream
    for way, begin in ways.items():
        seconds = _measure(world, begin, product, repeats)
        hidden = seconds["collective"] + seconds["product"] - seconds["together"]
        yield {
            "way": way,
            "collective": _collective(world),
            "bytes": nbytes,
            **{f"{part}_seconds": taken for part, taken in seconds.items()},
            "hidden": hidden / min(seconds["collective"], seconds["product"]),
        }


def sweep(world: World, repeats: int, sizes: tuple[int, ...], side: int) -> Iterator[Figure]:
    """Measure every size with NCCL's choice of CTAs and with given ones.

    Args:
        world: the ranks.
        repeats: rounds of a row, 3 at least.
        sizes: of the collective, in bytes.
        side: of the matrices.
    """
    ctas = ["default", *map(str, _ctas_to_try())] if world.provider == "cuda" else ["default"]
    choices = {
        "collective": [_collective(world)],
        "ctas": ctas,
        "load": [f"gemm:{side}"],
        "nbytes": sizes,
    }
    for row in lab.sweep_overlaps(
        world.comm, lab.combinations(choices), repeats=max(3, repeats), limit=10.0
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


def _collective(world: World) -> str:
    """An all_reduce of one rank does nothing; gathering from one rank copies."""
    return "all_reduce" if world.nranks > 1 else "all_gather"


def _ctas_to_try() -> tuple[int, ...]:
    """The numbers of CTAs to measure with: that of NCCL's environment, else few and more.

    NCCL_MAX_CTAS, which is set where ranks share a GPU, overrides every configuration.
    """
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


def _measure(
    world: World, start: Callable[[], Call], product: _Product, repeats: int
) -> dict[str, float]:
    """The seconds of the product, of the collective, and of both together."""

    def collective() -> None:
        start()()

    def together() -> None:
        finish = start()
        product()
        finish()

    product.times = 1
    for _ in range(2):
        together()
        world.synchronize()
    calls: dict[str, Call] = {"product": product, "collective": collective}
    seconds = _medians(world, calls, repeats)
    times = round(seconds["collective"] / seconds["product"])
    product.times = max(1, min(_MOST_PRODUCTS, times))
    return _medians(world, {**calls, "together": together}, repeats)


def _medians(world: World, calls: dict[str, Call], repeats: int) -> dict[str, float]:
    timers = {name: partial(_timer(world, call), 1) for name, call in calls.items()}
    measured = timing.in_turns(timers, repeats)
    figures = timing.figures(measured, lambda _: "")
    return {figure["library"]: figure["seconds"] for figure in figures}


def _timer(world: World, call: Call) -> Timer:
    """What takes seconds until the device is done, by the host's clock."""

    def measure(_calls: int) -> Elapsed:
        world.synchronize()
        began = time.perf_counter()
        call()
        world.synchronize()
        return Elapsed(time.perf_counter() - began)

    return world.sampler(measure)
