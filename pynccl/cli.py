"""Inspect this installation, analyze flight records and traces, and measure communication."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

__all__ = ["main"]

# A command's module, its description, and examples. The module defines add_arguments() and run(),
# and is imported for that command only. The exit status is 2 if the command cannot run, and 1 if it
# reports a problem.
_COMMANDS = {
    "info": (
        "pynccl.tools.doctor.info",
        "print providers, libraries, versions, devices, and settings",
        ("pynccl info", "pynccl info --all"),
    ),
    "doctor": (
        "pynccl.tools.doctor.command",
        "diagnose this installation",
        ("pynccl doctor", "pynccl doctor --provider cuda"),
    ),
    "explain": (
        "pynccl.tools.explain",
        "print the estimates and the choice of NCCL, or hostnccl, for a collective",
        ("pynccl explain", "pynccl explain all_gather --sizes 1M,64M --ranks 4"),
    ),
    "hostnccl": (
        None,
        "print the path of a libnccl.so.2 for LD_PRELOAD that runs any NCCL client on CPUs",
        ("LD_PRELOAD=$(pynccl hostnccl) python my_nccl_program.py",),
    ),
    "flight": (
        "pynccl.flight.command",
        "analyze the flight records of all ranks: which rank waits for which",
        (
            "PYNCCL_FLIGHT_FILE=$PWD/flight_ torchrun --nproc-per-node 2 train.py",
            "pynccl flight flight_*",
        ),
    ),
    "ras": (
        "pynccl.tools.ras",
        "list the communicators of a running job and its missing ranks, from NCCL's RAS service",
        ("pynccl ras", "pynccl ras --address node3:28028 --json"),
    ),
    "replay": (
        "pynccl.tools.replay.command",
        "replay recorded communication, optionally at other sizes",
        (
            "PYNCCL_RECORD=step.rec torchrun --nproc-per-node 4 train.py",
            "pynccl replay step.*.rec",
            "pynccl replay --ranks 2 --scale 0.1 step.*.rec",
        ),
    ),
    "trace": (
        "pynccl.tools.trace.command",
        "summarize, merge and check traces",
        (
            "PYNCCL_TRACE=step.json torchrun --nproc-per-node 4 train.py",
            "pynccl trace show step.*.json",
        ),
    ),
    "compare": (
        "pynccl.tools.compare.command",
        "run a torch.distributed script over torch's backend and over pynccl's",
        ("pynccl compare --ranks 2 train.py --epochs 1",),
    ),
    "bench": (
        "pynccl.tools.bench",
        "time operations beside those of torch.distributed, and check their results",
        ("pynccl bench", "pynccl bench --ranks 4 --operations all_reduce --sizes 8,64K,16M"),
    ),
    "lab": (
        "pynccl.tools.lab.command",
        "measure how much communication is hidden by compute, and compare algorithms",
        ("pynccl lab overlap --sizes 1M,16M", "pynccl lab sweep --ranks 2,4"),
    ),
    "build-backend": (
        None,
        "build the torch.distributed backend for the installed torch",
        ("pynccl build-backend",),
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser whose help ends with examples. Subcommands have parsers of the same class.

    Args:
        examples: command lines.
        options: of ArgumentParser.
    """

    def __init__(self, *, examples: tuple[str, ...] = (), **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.examples = examples

    def format_help(self) -> str:
        """Return the help with the examples below it."""
        text = super().format_help()
        return text + "\nexamples:\n" + "".join(f"  {one}\n" for one in self.examples)


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; None uses those of the process.

    Returns:
        The exit status.
    """
    if sys.stdout is None:  # closed by the caller; libraries print to its descriptor, too
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has exited, as in `pynccl info | head`
        # The interpreter flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser(words: list[str]) -> _Parser:
    """Return the parser, with the arguments of the command that words begin with."""
    parser = _Parser(prog="pynccl", description=__doc__, examples=("pynccl doctor",))
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, text, examples) in _COMMANDS.items():
        one = commands.add_parser(name, help=text, description=text, examples=examples)
        if module and words[:1] == [name]:
            command = importlib.import_module(module)
            try:
                command.add_arguments(one)
            except ValueError as error:  # a default value: PYNCCL_PROVIDER is not a provider
                one.error(str(error))
    return parser


def _run(words: list[str]) -> int:
    arguments = _parser(words).parse_args(words)
    try:
        return _run_command(arguments)
    except BrokenPipeError:
        raise
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        if sys.flags.dev_mode:  # python -X dev -m pynccl ... prints the traceback
            raise
        from pynccl.testing import LaunchError  # slow to import

        print(f"pynccl {arguments.command}: {error}", file=sys.stderr)
        return 1 if isinstance(error, LaunchError) else 2


def _run_command(arguments: argparse.Namespace) -> int:
    if module := _COMMANDS[arguments.command][0]:
        status: int = importlib.import_module(module).run(arguments)
        return status
    if arguments.command == "hostnccl":
        from pynccl.libraries import hostnccl_preload

        print(hostnccl_preload())
    else:
        from pynccl.c10d import build  # requires torch

        print(build.build(verbose=True))
    return 0
