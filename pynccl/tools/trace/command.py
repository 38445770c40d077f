"""``pynccl trace``: summaries, merged files and order checks of trace files."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pynccl.tools.trace import chrome
from pynccl.tools.trace.merge import merge
from pynccl.tools.trace.model import ProcessTrace, TraceError
from pynccl.tools.trace.order import check
from pynccl.tools.trace.summary import clock_notes, summarise

__all__ = ["add_arguments", "run"]

_Run = Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    commands = parser.add_subparsers(dest="trace_command", required=True)

    def add(name: str, run: _Run, text: str, options: str = "") -> argparse.ArgumentParser:
        example = f"pynccl trace {name} step.*.json{options}"
        one = commands.add_parser(name, help=text, description=text, examples=(example,))
        one.add_argument(
            "files", nargs="+", metavar="FILE", help="a trace of one or more processes"
        )
        one.set_defaults(run_trace=run)
        return one

    add("show", _show, "print tables of the operations and of the ranks")
    text = "write the traces of several ranks to one file, aligned to one clock"
    joined = add("merge", _merge, text, " -o step.json")
    joined.add_argument("-o", "--output", required=True, metavar="OUT.json")
    add("check", _check, "find operations that use the same buffer without a defined order")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if a check found conflicts.

    Raises:
        TraceError, OSError: a file cannot be read or written.
    """
    result: int = arguments.run_trace(arguments)
    return result


def _load(arguments: argparse.Namespace, *, timed: bool = True) -> list[ProcessTrace]:
    """Load the traces of all files; timed rejects recordings, which have no times."""
    traces = []
    for path in arguments.files:
        for trace in chrome.load(path):
            if timed and not trace.timed:
                raise TraceError(f"{path}: this is a recording, which lacks the times of a trace")
            traces.append(trace)
    return traces


def _show(arguments: argparse.Namespace) -> int:
    print(summarise(merge(_load(arguments, timed=False))).text())
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    traces = _load(arguments)
    chrome.save(traces, arguments.output)
    for note in clock_notes(merge(traces)):
        print(note)
    print(arguments.output)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    merged = merge(_load(arguments))
    lines = [
        f"{merged.label(position)}: {conflict.text()}"
        for position, trace in enumerate(merged.traces)
        for conflict in check(trace)
    ]
    print("\n".join(lines) if lines else "no conflicting uses of a buffer")
    return 1 if lines else 0
