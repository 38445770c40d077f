"""Inspect this installation, analyze flight records and traces, and measure communication."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

__all__ = ["main"]

# A command's module defines add_arguments() and run(), and is imported for that command only.
_COMMANDS = {
    "info": (
        "pynccl.tools.doctor.info",
        "print providers, libraries, versions, devices, and settings",
    ),
    "doctor": (
        "pynccl.tools.doctor.command",
        "diagnose this installation",
    ),
    "hostnccl": (
        None,
        "print the path of a libnccl.so.2 for LD_PRELOAD that runs any NCCL client on CPUs",
    ),
    "flight": (
        "pynccl.flight.command",
        "analyze the flight records of all ranks: which rank waits for which",
    ),
    "replay": (
        "pynccl.tools.replay.command",
        "replay recorded communication, optionally at other sizes",
    ),
    "trace": (
        "pynccl.tools.trace.command",
        "summarize, merge, plot and check traces",
    ),
    "lab": (
        "pynccl.tools.lab.command",
        "measure how much communication is hidden by compute, and compare algorithms",
    ),
    "build-backend": (
        None,
        "build the torch.distributed backend for the installed torch",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; None uses those of the process.

    Returns:
        The exit status.
    """
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as in `pynccl info | head`
        # The interpreter flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pynccl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, text) in _COMMANDS.items():
        one = commands.add_parser(name, help=text, description=text)
        if module and words[:1] == [name]:
            importlib.import_module(module).add_arguments(one)
    arguments = parser.parse_args(words)
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


if __name__ == "__main__":
    sys.exit(main())
