"""``pynccl explain``: NCCL's choices for a collective over a range of sizes."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from pynccl import nccl
from pynccl._internal import plugin
from pynccl._internal.explanation import blocks
from pynccl.errors import MissingFunctionError
from pynccl.libraries import PROVIDERS, default_provider, load
from pynccl.tools.lab import algorithms, world
from pynccl.tools.lab.algorithms import Measured
from pynccl.tools.lab.operations import COLLECTIVES
from pynccl.tools.lab.variants import Variant
from pynccl.tools.text import list_of, parse_size, positive, size_text, table

__all__ = ["Times", "add_arguments", "explain_sizes", "measured_times", "run", "write_table"]

_SIZES = [4**exponent for exponent in range(5, 16)]  # 1 KiB to 1 GiB
_OPERATIONS = [name for name in COLLECTIVES if name != "send_recv"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("operation", nargs="?", choices=_OPERATIONS, default="all_reduce")
    parser.add_argument(
        "--sizes",
        type=list_of(parse_size),
        default=_SIZES,
        help="bytes of the larger buffer (default: 1K,4K,...,1G)",
    )
    parser.add_argument(
        "--ranks",
        type=positive,
        help="number of ranks (default: the GPUs of this machine; on CPUs 2)",
    )
    parser.add_argument(
        "--provider",
        choices=PROVIDERS,
        default=default_provider(),
        help="host on CPUs, cuda on GPUs (default: %(default)s)",
    )
    parser.add_argument("--tuning", type=Path, help="a tuning file with choices to force")
    parser.add_argument(
        "--measured", type=Path, help="a file of pynccl lab sweep --json: print its times as well"
    )
    parser.add_argument("--json", type=Path, help="also write the rows to a JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: an argument or a file is invalid.
        OSError: a file cannot be read or written.
        LibraryNotFoundError: the library was not found.
        MissingFunctionError: NCCL cannot explain its choices.
        LaunchError: a rank failed.
    """
    provider = arguments.provider
    env = {"PYNCCL_EXPLAIN": "1"} if provider == "cuda" else {}
    if arguments.tuning:
        if provider == "host":
            raise ValueError("--tuning: hostnccl reads no tuning file; use --provider cuda")
        plugin.read_rules(arguments.tuning)  # report its errors here rather than in a rank
        env["PYNCCL_TUNING"] = str(arguments.tuning.resolve())
    measured = algorithms.read_json(arguments.measured) if arguments.measured else []
    nranks = arguments.ranks or (2 if provider == "host" else len(load("cuda").device_names()))
    if nranks < 2:
        raise ValueError(f"--ranks: {nranks} is below 2: NCCL chooses nothing for one rank")
    if provider == "cuda" and world.is_under_torchrun():
        nccl.explain(arguments.tuning)
    args = (arguments.operation, arguments.sizes)
    rows = world.run(nranks, explain_sizes, args, provider, env)
    if rows is None:
        return 0  # a rank of torchrun other than rank 0
    if isinstance(rows, str):
        raise MissingFunctionError(rows)
    times = [measured_times(row, measured) for row in rows]
    print(write_table(rows, times))
    if arguments.json:
        written = [_as_dict(row, row_times) for row, row_times in zip(rows, times, strict=True)]
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def explain_sizes(
    comm: nccl.Communicator, operation: str, sizes: Sequence[int]
) -> list[nccl.Explanation] | str:
    """Explain an operation at several sizes, on all ranks.

    Returns:
        The explanations, or the reason why NCCL cannot explain its choices.
    """
    unit = blocks(operation, comm.nranks)
    try:
        return [comm.explain(operation, max(nbytes // unit, 1) * unit) for nbytes in sizes]
    except (MissingFunctionError, ValueError) as error:
        return str(error)


@dataclasses.dataclass(frozen=True)
class Times:
    """The measured times for a row, in microseconds per call.

    Attributes:
        choice: the time of the choice; None if it was not measured.
        fastest: the fastest variant.
        least: the time of the fastest variant.
    """

    choice: float | None
    fastest: str
    least: float


def measured_times(row: nccl.Explanation, measured: Sequence[Measured]) -> Times | None:
    """Find the measurements of a row; None if there are none.

    Without a rule, the time of the choice can also be that of the default variant.
    """
    unit = blocks(row.operation, row.nranks)
    times: dict[Variant, float] = {}
    for entry in measured:
        key = entry.collective, entry.nranks, entry.nbytes // unit * unit
        if key == (row.operation, row.nranks, row.nbytes) and entry.timing is not None:
            times[entry.variant] = entry.timing.median * 1e6
    if not times:
        return None
    choice = next((time for variant, time in times.items() if _is_choice(row, variant)), None)
    if choice is None and not row.rule:
        choice = times.get(Variant())
    fastest = min(times, key=times.__getitem__)
    return Times(choice, str(fastest), times[fastest])


def _is_choice(row: nccl.Explanation, variant: Variant) -> bool:
    chosen = row.algorithm, row.protocol or Variant().protocol
    algorithm = plugin.display_name(variant.algorithm, chosen)
    protocol = plugin.display_name(variant.protocol, chosen)
    return (algorithm, protocol, variant.ctas) == (*chosen, Variant().ctas)


def write_table(rows: Sequence[nccl.Explanation], times: Sequence[Times | None] = ()) -> str:
    """Format explanations of one operation: one row for each size, ``*`` at the choice.

    Args:
        rows: the explanations.
        times: the measured times for each row.
    """
    first = rows[0]
    variants = list(dict.fromkeys(variant for row in rows for variant in row.costs))
    columns: list[tuple[str, Callable[[nccl.Explanation, Times | None], str]]] = [
        ("size", lambda row, _: size_text(row.nbytes)),
        *((f"{' '.join(variant).rstrip()} ", _cost(variant)) for variant in variants),
        (
            "measured",
            lambda _, row_times: (
                f"{row_times.choice:.1f}" if row_times and row_times.choice else ""
            ),
        ),
        ("algorithm", lambda row, _: row.algorithm),
        ("protocol", lambda row, _: row.protocol),
        ("rounds", lambda row, _: str(row.rounds or "")),
        ("forced", lambda row, _: _forced(row)),
        (
            "fastest",
            lambda _, row_times: f"{row_times.fastest} {row_times.least:.1f}" if row_times else "",
        ),
    ]
    paired = list(zip(rows, times or [None] * len(rows), strict=True))
    cells = {name: [text(*pair) for pair in paired] for name, text in columns}
    shown = {name: column for name, column in cells.items() if any(column)}
    text = table(
        list(shown),
        list(zip(*shown.values(), strict=True)),
        left=[place for place, name in enumerate(shown) if name in _TEXTS],
    )
    title = f"{first.operation}, {first.nranks} ranks, {first.version}"
    if variants or any(times):
        title += ": microseconds" + (", * chosen" if variants else "")
    return f"{title}\n{text}"


_TEXTS = ("algorithm", "protocol", "forced", "fastest")


def _cost(variant: tuple[str, str]) -> Callable[[nccl.Explanation, Times | None], str]:
    def text(row: nccl.Explanation, _: Times | None) -> str:
        if variant not in row.costs:
            return "- "
        mark = "*" if variant == (row.algorithm, row.protocol) else " "
        return f"{row.costs[variant]:.1f}{mark}"

    return text


def _forced(row: nccl.Explanation) -> str:
    if not row.rule:
        return "" if row.rule is None else "not usable"
    least = min(row.costs, key=row.costs.__getitem__)
    forced = least != (row.algorithm, row.protocol)
    return f"rule {row.rule}" + (f" (least: {' '.join(least)})" if forced else "")


def _as_dict(row: nccl.Explanation, times: Times | None) -> dict[str, object]:
    fields = dataclasses.asdict(row)
    fields["costs"] = {" ".join(variant).rstrip(): us for variant, us in row.costs.items()}
    fields["measured"] = dataclasses.asdict(times) if times else None
    return fields
