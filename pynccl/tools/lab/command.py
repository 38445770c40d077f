"""The command ``pynccl lab``: sweeps of overlap and of algorithms."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pynccl import nccl
from pynccl._internal.progress import Progress
from pynccl.libraries import PROVIDERS, default_provider
from pynccl.tools.lab import algorithms, settings, variants, world
from pynccl.tools.lab.operations import BUFFERS, COLLECTIVES
from pynccl.tools.lab.plots import check_matplotlib, draw_lanes
from pynccl.tools.lab.row import Row, write_json, write_table
from pynccl.tools.lab.settings import POLICIES
from pynccl.tools.text import list_of, one_of, parse_size, positive, seconds

__all__ = ["add_arguments", "run"]

_REPEATS = 20
_MORE = 5.0  # seconds for the rounds of a row, unless --repeats or --until-certain is given
# The options with the names of Setting's attributes: type of an element, default, and help.
_SETTINGS: dict[str, tuple[Callable[[str], Any], object, str]] = {
    "collective": (one_of(COLLECTIVES), "all_reduce", f"collectives: {', '.join(COLLECTIVES)}"),
    "ctas": (str, "default", "numbers of CTAs, such as 4, or minimum and maximum, such as 1:16"),
    "policy": (one_of(POLICIES), "default", f"NCCL's policy for CTAs: {', '.join(POLICIES)}"),
    "priority": (int, 0, "priority of the stream"),
    "buffer": (one_of(BUFFERS), "plain", f"memory of the communication: {', '.join(BUFFERS)}"),
    "chunks": (int, 1, "number of calls that the communication is divided into"),
    "load": (
        str,
        "gemm:256",
        "gemm:SIDE, memory:BYTES, sleep:SECONDS or spin:SECONDS; sleep and spin without seconds "
        "last T_comm",
    ),
    "form": (one_of(("eager", "graph")), "eager", "eager calls or a captured graph"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    commands = parser.add_subparsers(dest="lab_command", required=True)
    overlap = commands.add_parser(
        "overlap",
        help="measure how much of a communication is hidden, and why the rest is exposed",
        description="Options with several values take a comma-separated list; the "
        "rows are all combinations. Under torchrun, its processes are the ranks.",
        examples=(
            "pynccl lab overlap --sizes 1M,16M --load gemm:256,sleep:0.005 --plot lanes.png",
            "pynccl lab overlap --sizes 4M --load gemm:256 --until-certain",
            "torchrun --nproc-per-node 8 -m pynccl lab overlap --ctas 4,16 --form graph",
        ),
    )
    overlap.add_argument(
        "--sizes",
        type=list_of(parse_size),
        help="bytes of the communication (default: 256K,1M,4M on CPUs, 64K,1M,16M on GPUs)",
    )
    for name, (kind, default, text) in _SETTINGS.items():
        overlap.add_argument(
            f"--{name}",
            type=list_of(kind),
            default=[default],
            help=f"{text} (default: {default})",
        )
    overlap.add_argument(
        "--load-seconds",
        type=seconds,
        help="duration of every load (default: its own SECONDS, else T_comm)",
    )
    overlap.add_argument(
        "--until-certain",
        action="store_true",
        help="measure until the verdict of each row is certain, up to --limit instead of 5 s",
    )
    overlap.add_argument(
        "--limit", type=seconds, default=60.0, help="seconds for the rounds of a row (default: 60)"
    )
    overlap.add_argument(
        "--plot", type=Path, help="draw the lanes of the rows: a PNG file; needs matplotlib"
    )
    compared = commands.add_parser(
        "sweep",
        help="find the fastest algorithm for each size and number of ranks",
        examples=("pynccl lab sweep --collective all_gather --ranks 2,4",),
    )
    compared.add_argument(
        "--sizes",
        type=list_of(parse_size),
        default=[4**exponent for exponent in range(5, 13)],
        help="bytes of the communication (default: 1K,4K,...,16M)",
    )
    compared.add_argument("--collective", choices=COLLECTIVES, default="all_reduce")
    compared.add_argument(
        "--algorithms",
        type=list_of(str),
        help="algorithms (default: ring,tree; on CPUs staged,direct,window)",
    )
    compared.add_argument(
        "--protocols", type=list_of(str), help="protocols (default: ll,ll128,simple on GPUs)"
    )
    compared.add_argument(
        "--ctas",
        type=list_of(str),
        default=["default"],
        help="numbers of CTAs, such as default,1,4,16",
    )
    compared.add_argument(
        "--write", type=Path, help="write the winners to a tuning file, for PYNCCL_TUNING"
    )
    until = f"default: {_REPEATS}, then until the verdict is certain, for up to {_MORE:g} s"
    for command, repeats in ((overlap, until), (compared, f"default: {_REPEATS}")):
        command.add_argument(
            "--ranks", type=list_of(positive), default=[2], help="numbers of ranks (default: 2)"
        )
        command.add_argument(
            "--provider",
            choices=PROVIDERS,
            default=default_provider(),
            help="host on CPUs, cuda on GPUs (default: %(default)s)",
        )
        command.add_argument("--repeats", type=positive, help=f"samples of each row ({repeats})")
        command.add_argument("--json", type=Path, help="also write the rows to a JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: an argument is invalid.
        ImportError: a plot needs matplotlib.
        OSError: a file cannot be written.
        LaunchError: a rank failed.
    """
    if arguments.lab_command == "overlap":
        _overlap(arguments)
    else:
        _sweep(arguments)
    return 0


def _overlap(arguments: argparse.Namespace) -> None:
    if arguments.plot:
        check_matplotlib()
    exponents = (16, 20, 24) if arguments.provider == "cuda" else (18, 20, 22)
    chosen = settings.combinations(
        {
            "nranks": arguments.ranks,
            "nbytes": arguments.sizes or [2**exponent for exponent in exponents],
            **{name: getattr(arguments, name) for name in _SETTINGS},
        }
    )
    for setting in chosen:
        setting.config()  # report its errors here rather than in a rank
    options = {name: getattr(arguments, name) for name in ("load_seconds", "limit")}
    options["repeats"] = _REPEATS if arguments.repeats is None else arguments.repeats
    more = _MORE if arguments.repeats is None else False
    options["until_certain"] = arguments.until_certain or more
    args = (chosen, options)
    rows = world.run(max(arguments.ranks), _sweep_in_world, args, arguments.provider)
    if not rows:
        return  # a rank of torchrun other than rank 0
    print(write_table(rows))
    if arguments.json:
        write_json(arguments.json, rows)
    if arguments.plot:
        draw_lanes(arguments.plot, rows)


def _sweep_in_world(
    comm: nccl.Communicator, chosen: list[settings.Setting], options: dict[str, Any]
) -> list[Row]:
    progress = Progress() if comm.rank == 0 else None
    return settings.sweep_overlaps(comm, chosen, progress=progress, **options)


def _sweep(arguments: argparse.Namespace) -> None:
    if world.is_under_torchrun():
        raise ValueError("sweep launches its ranks itself; run it without torchrun")
    on_gpus = arguments.provider == "cuda"
    if arguments.write and not on_gpus:
        raise ValueError("--write: hostnccl reads no tuning file; use --provider cuda")
    has_algorithms = arguments.collective in variants.FUNCTIONS
    gpu_algorithms = ["ring", "tree"] if arguments.collective == "all_reduce" else ["ring"]
    paths = ["staged", "direct", "window"] if arguments.collective != "send_recv" else []
    provider_algorithms = (gpu_algorithms if has_algorithms else []) if on_gpus else paths
    protocols = ["ll", "ll128", "simple"] if on_gpus and has_algorithms else ["default"]
    compared = variants.variants(
        arguments.provider,
        arguments.collective,
        arguments.algorithms or provider_algorithms or ["default"],
        arguments.protocols or protocols,
        arguments.ctas,
    )
    measured = algorithms.compare(
        arguments.provider,
        arguments.collective,
        arguments.sizes,
        compared,
        arguments.ranks,
        repeats=_REPEATS if arguments.repeats is None else arguments.repeats,
        progress=Progress(),
    )
    print(algorithms.write_table(measured))
    if arguments.json:
        algorithms.write_json(arguments.json, measured)
    if arguments.write:
        rules = algorithms.tuning(measured)
        arguments.write.write_text(json.dumps({"rules": rules}, indent=1) + "\n")
        print(f"{len(rules)} rules in {arguments.write}")
