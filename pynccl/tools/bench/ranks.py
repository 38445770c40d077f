"""A rank of ``pynccl bench``: the operations of both libraries, their results and their times."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pynccl import nccl
from pynccl._internal.progress import Progress
from pynccl.testing import Rank

if TYPE_CHECKING:
    import torch

__all__ = ["OPERATIONS", "Row", "measure"]

OPERATIONS = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
)
_TORCH_NAMES = {
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
}
_SAMPLE = 5e-3  # seconds that a sample takes at least
_WARMUP = 3
_MOST_CALLS = 1000


@dataclass
class Row:
    """An operation with a size.

    Attributes:
        operation: one of OPERATIONS; "send_recv" sends to the next rank and receives from the
            previous one.
        nbytes: bytes of the larger buffer.
        pynccl: seconds of a call, by sample; the maximum over the ranks.
        torch: the same of torch.distributed; empty if its backend does not support the operation.
        wrong: which result differs from the expected one, or why there is none; "" if all are
            right.
    """

    operation: str
    nbytes: int
    pynccl: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)
    wrong: str = ""


def measure(rank: Rank, pairs: Sequence[tuple[str, int]], repeats: int) -> list[Row]:
    """Measure each operation and size; all ranks call it.

    Args:
        rank: this rank.
        pairs: operations and bytes.
        repeats: samples of each library, which take turns.
    """
    import torch
    import torch.distributed as dist

    device = torch.device("cpu" if rank.device is None else f"cuda:{rank.device}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=rank.init_method, rank=rank.rank, world_size=rank.world_size
    )
    rows, progress = [], Progress()
    for index, (operation, nbytes) in enumerate(pairs):
        if rank.rank == 0:
            progress(index, len(pairs), f"{operation} {nbytes} B")
        rows.append(_measure_row(rank, device, Row(operation, nbytes), repeats))
    if rank.rank == 0:
        progress(len(pairs), len(pairs), "")
    dist.destroy_process_group()
    return rows


def _measure_row(rank: Rank, device: torch.device, row: Row, repeats: int) -> Row:
    import torch

    count = max(1, row.nbytes // 4 // rank.world_size) * rank.world_size
    values = torch.arange(count, dtype=torch.float32, device=device) % 11
    timers, wrong = {}, []
    for library, make in (("pynccl", _pynccl_call), ("torch", _torch_call)):
        source, result, expected = _buffers(row.operation, rank, values)
        call = make(rank, row.operation, source, result)
        found = ""
        try:
            call()
            if not torch.equal(result, expected):
                found = f"{library}: a wrong result on a rank"
        except (RuntimeError, NotImplementedError) as error:
            found = f"{library}: {error}"
        if _maximum(rank, float(bool(found)), device):
            wrong.append(found or f"{library}: failed on another rank")
            continue
        source.zero_()  # repeated sums remain finite
        timers[library] = functools.partial(_sample, rank, device, call)
    calls = {}
    for library, timer in timers.items():
        once = min(timer(1) for _ in range(_WARMUP))
        calls[library] = max(1, min(_MOST_CALLS, round(_SAMPLE / once)))
    for repeat in range(repeats):
        for library in sorted(timers, reverse=repeat % 2 == 1):
            getattr(row, library).append(timers[library](calls[library]))
    row.wrong = ", ".join(wrong)
    return row


def _buffers(
    operation: str, rank: Rank, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The input of this rank, the output and what it must contain; in place, both are one."""
    import torch

    size, me = rank.world_size, rank.rank
    each = values.chunk(size)
    ours = slice(me * len(each[0]), (me + 1) * len(each[0]))
    total = size * (size - 1) / 2
    if operation == "all_reduce":
        source, expected = values + me, values * size + total
        return source, source, expected
    if operation == "broadcast":
        source = values + me
        return source, source, values.clone()
    if operation == "all_gather":
        return each[0] + me, torch.empty_like(values), torch.cat([each[0] + r for r in range(size)])
    if operation == "reduce_scatter":
        return values + me, torch.empty_like(each[0]), values[ours] * size + total
    if operation == "all_to_all":
        expected = torch.cat([values[ours] + r for r in range(size)])
        return values + me, torch.empty_like(values), expected
    return values + me, torch.empty_like(values), values + (me - 1) % size


def _pynccl_call(
    rank: Rank, operation: str, source: torch.Tensor, result: torch.Tensor
) -> Callable[[], object]:
    comm, size = rank.comm, rank.world_size
    if operation == "all_reduce":
        return lambda: comm.all_reduce(source)
    if operation == "broadcast":
        return lambda: comm.broadcast(source, 0)
    if operation != "send_recv":
        function: Any = getattr(comm, operation)
        return lambda: function(source, out=result)

    def exchange() -> None:
        with nccl.group():
            comm.send(source, (rank.rank + 1) % size)
            comm.recv(result, (rank.rank - 1) % size)

    return exchange


def _torch_call(
    rank: Rank, operation: str, source: torch.Tensor, result: torch.Tensor
) -> Callable[[], object]:
    import torch.distributed as dist

    size = rank.world_size
    if operation == "all_reduce":
        return lambda: dist.all_reduce(source)
    if operation == "broadcast":
        return lambda: dist.broadcast(source, 0)
    if operation != "send_recv":
        name = _TORCH_NAMES.get(operation, operation)
        # torch 2.13 deprecates the names of all older versions.
        function: Any = getattr(dist, f"{operation}_single", None) or getattr(dist, name)
        return lambda: function(result, source)

    def exchange() -> None:
        operations = [
            dist.P2POp(dist.isend, source, (rank.rank + 1) % size),
            dist.P2POp(dist.irecv, result, (rank.rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return exchange


def _sample(rank: Rank, device: torch.device, call: Callable[[], object], calls: int) -> float:
    """Seconds of a call, the maximum over the ranks, which begin at about the same time."""
    _maximum(rank, 0.0, device)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return _maximum(rank, (time.perf_counter() - began) / calls, device)


def _maximum(rank: Rank, value: float, device: torch.device) -> float:
    import torch

    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    rank.comm.all_reduce(tensor, nccl.MAX)
    return float(tensor.item())
