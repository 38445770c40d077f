"""``pynccl bench``: operations timed beside those of torch.distributed, with checked results."""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynccl
from pynccl._internal.progress import Progress
from pynccl.libraries import PROVIDERS, default_provider
from pynccl.testing import Launcher, Rank
from pynccl.tools.lab.row import Timing
from pynccl.tools.text import (
    list_of,
    one_of,
    parse_size,
    positive,
    significant,
    size_text,
    table,
)

if TYPE_CHECKING:
    import torch

__all__ = ["OPERATIONS", "Row", "add_arguments", "call_of", "measure", "run", "write"]

# The operations, and torch's names before torch 2.13 deprecated them.
_OLD_NAMES = {
    "all_reduce": "",
    "broadcast": "",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
    "send_recv": "",
}
OPERATIONS = tuple(_OLD_NAMES)
_SAMPLE = 5e-3  # minimum seconds of a sample
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
        torch: the same for torch.distributed.
        wrong: which result is wrong, or why there is none; "" if all are correct. A library without
            a correct result is not timed.
    """

    operation: str
    nbytes: int
    pynccl: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)
    wrong: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--ranks", type=positive, default=2, help="number of processes (default: 2)"
    )
    parser.add_argument(
        "--operations",
        type=list_of(one_of(OPERATIONS)),
        default=list(OPERATIONS),
        help=f"comma-separated list of {', '.join(OPERATIONS)} (default: all)",
    )
    parser.add_argument(
        "--sizes",
        type=list_of(parse_size),
        default=[2**10, 2**16, 2**22],
        help="bytes of the larger buffer of a rank (default: 1K,64K,4M)",
    )
    parser.add_argument(
        "--provider",
        choices=PROVIDERS,
        default=default_provider(),
        help="host on CPUs, compared with gloo; cuda on GPUs, compared with nccl "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=positive, default=15, help="samples of each library (default: 15)"
    )
    parser.add_argument("--json", type=Path, help="also write all samples to a JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if a result is wrong.

    Raises:
        ImportError: torch is not installed.
        LaunchError: a rank failed.
        OSError: the JSON file cannot be written.
    """
    if importlib.util.find_spec("torch") is None:
        raise ImportError("needs torch, which is not installed")
    pairs = [(name, size) for name in arguments.operations for size in arguments.sizes]
    with Launcher() as launcher:
        rows = launcher.launch(
            arguments.ranks,
            measure,
            (pairs, arguments.repeats),
            provider=arguments.provider,
            timeout=None,
            env={"OMP_NUM_THREADS": "1"},
        )[0]
    print(write(rows, "nccl" if arguments.provider == "cuda" else "gloo"))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if any(row.wrong for row in rows) else 0


def write(rows: Sequence[Row], backend: str) -> str:
    """Format the rows as a table, followed by a summary and by the wrong results."""
    header = ("operation", "size", "pynccl us", "spread", f"{backend} us", "spread", "ratio")
    cells, ratios = [], {}
    for row in rows:
        times = [_median_and_spread(samples) for samples in (row.pynccl, row.torch)]
        ratio = "-"
        if times[0] and times[1]:
            name = f"{row.operation} {size_text(row.nbytes)}"
            ratios[name] = times[1][0] / times[0][0]
            ratio = significant(ratios[name], 2)
        texts = [
            text
            for found in times
            for text in (
                (significant(found[0] * 1e6, 2), f"{found[1]:.0%}") if found else ("-", "-")
            )
        ]
        cells.append([row.operation, size_text(row.nbytes), *texts, ratio])
    lines = [table(header, cells)]
    if ratios:
        behind = [f"{name} ({ratio:.2f})" for name, ratio in ratios.items() if ratio < 1]
        lines.append(
            f"pynccl is faster in {len(ratios) - len(behind)} of {len(ratios)} rows"
            + (f", slower in {', '.join(behind)}" if behind else "")
        )
    lines += [f"{row.operation} {size_text(row.nbytes)}: {row.wrong}" for row in rows if row.wrong]
    return "\n".join(lines)


def _median_and_spread(samples: Sequence[float]) -> tuple[float, float] | None:
    """The median, and the interquartile range as a share of it; None without samples."""
    if not samples:
        return None
    timing = Timing(tuple(samples))
    low, high = timing.quartiles
    return timing.median, (high - low) / timing.median


def measure(rank: Rank, pairs: Sequence[tuple[str, int]], repeats: int) -> list[Row]:
    """Measure operations of given sizes on all ranks; the samples of both libraries alternate."""
    import torch
    import torch.distributed as dist

    device = torch.device("cpu" if rank.device is None else f"cuda:{rank.device}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backends: dict[Any, str] = {
        pynccl: "host" if device.type == "cpu" else "nccl",
        dist: "gloo" if device.type == "cpu" else "nccl",
    }
    for library, backend in backends.items():
        url = f"{rank.init_method}-{library.__name__}"
        library.init_process_group(
            backend, init_method=url, rank=rank.rank, world_size=rank.world_size
        )
    rows, progress = [], Progress()
    for index, (operation, nbytes) in enumerate(pairs):
        if rank.rank == 0:
            progress(index, len(pairs), f"{operation} {nbytes} B")
        rows.append(_measure_row(rank, device, Row(operation, nbytes), repeats))
    if rank.rank == 0:
        progress(len(pairs), len(pairs), "")
    for library in backends:
        library.destroy_process_group()
    return rows


def _measure_row(rank: Rank, device: torch.device, row: Row, repeats: int) -> Row:
    import torch

    count = max(1, row.nbytes // 4 // rank.world_size) * rank.world_size
    values = torch.arange(count, dtype=torch.float32, device=device) % 11
    timers, wrong = {}, []
    for name, library in (("pynccl", pynccl), ("torch", torch.distributed)):
        source, result, expected = _buffers(row.operation, rank, values)
        found = ""
        try:
            call = call_of(library, row.operation, rank.rank, (source, result))
            call()
            if not torch.equal(result, expected):
                found = f"{name}: a wrong result on a rank"
        except (RuntimeError, NotImplementedError) as error:
            found = f"{name}: {error}"
        if _maximum(float(bool(found)), device):
            wrong.append(found or f"{name}: failed on another rank")
            continue
        source.zero_()  # repeated sums remain finite
        timers[name] = partial(_sample, device, call)
    once = {name: min(timer(1) for _ in range(_WARMUP)) for name, timer in timers.items()}
    for repeat in range(repeats):
        for name in sorted(timers, reverse=repeat % 2 == 1):
            calls = max(1, min(_MOST_CALLS, round(_SAMPLE / once[name])))
            getattr(row, name).append(timers[name](calls))
    row.wrong = ", ".join(wrong)
    return row


def _buffers(
    operation: str, rank: Rank, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The input of this rank, the output and its expected contents; in place, both are one."""
    import torch

    size, source = rank.world_size, values + rank.rank
    block = values.chunk(size)[rank.rank]
    total = size * (size - 1) / 2
    if operation == "all_reduce":
        return source, source, values * size + total
    if operation == "broadcast":
        return source, source, values
    if operation == "all_gather":
        expected = torch.cat([values[: len(block)] + one for one in range(size)])
        return source[: len(block)], torch.empty_like(values), expected
    if operation == "reduce_scatter":
        return source, torch.empty_like(block), block * size + total
    if operation == "all_to_all":
        expected = torch.cat([block + one for one in range(size)])
        return source, torch.empty_like(values), expected
    return source, torch.empty_like(values), values + (rank.rank - 1) % size


def call_of(
    library: Any,  # noqa: ANN401 - pynccl or torch.distributed
    operation: str,
    rank: int,
    buffers: tuple[torch.Tensor, torch.Tensor],
    group: Any = None,  # noqa: ANN401 - of the library
) -> Callable[[], object]:
    """Return the call of an operation, which reuses the objects that it can.

    Args:
        library: the module, pynccl or torch.distributed.
        operation: one of OPERATIONS.
        rank: this rank.
        buffers: the input and the output; only the output of all_reduce and broadcast.
        group: a process group with all ranks; None is the default group.
    """
    source, result = buffers
    if operation == "all_reduce":
        return partial(library.all_reduce, result, group=group)
    if operation == "broadcast":
        return partial(library.broadcast, result, 0, group=group)
    if operation != "send_recv":
        # torch 2.13 renamed them, and warns at every call of the old names.
        function = getattr(library, f"{operation}_single", None)
        function = function or getattr(library, _OLD_NAMES[operation])
        return partial(function, result, source, group=group)
    size = library.get_world_size(group)
    messages = [
        library.P2POp(library.isend, source, (rank + 1) % size, group=group),
        library.P2POp(library.irecv, result, (rank - 1) % size, group=group),
    ]

    def exchange() -> None:
        for work in library.batch_isend_irecv(messages):
            work.wait()

    return exchange


def _sample(device: torch.device, call: Callable[[], object], calls: int) -> float:
    """Seconds of a call, the maximum over the ranks, which begin at about the same time."""
    _maximum(0.0, device)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return _maximum((time.perf_counter() - began) / calls, device)


def _maximum(value: float, device: torch.device) -> float:
    import torch

    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    pynccl.all_reduce(tensor, pynccl.ReduceOp.MAX)
    return float(tensor.item())
