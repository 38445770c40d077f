"""Starts the ranks of a benchmark as processes, and sees to it that none outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["BenchmarkError", "RankError", "Send", "launch"]

Send = Callable[[object], None]


class BenchmarkError(Exception):
    """A reason to end the run that needs no traceback."""


class RankError(BenchmarkError):
    """A rank failed, died or fell silent."""


@dataclass(frozen=True)
class _Failure:
    text: str


class _Done:
    pass


def launch(
    nranks: int, function: Callable[..., None], args: tuple[object, ...], patience: float
) -> Iterator[Any]:
    """Run ``function(rank, send, *args)`` in a new process for each rank.

    Whatever ends the iteration, no rank is left afterwards; where this process is killed, the
    ranks end themselves.

    Args:
        nranks: how many ranks to start.
        function: at the top level of a module.
        args: what can be pickled.
        patience: seconds for which all ranks may be silent.

    Yields:
        What the ranks pass to ``send``, in the order of arrival.

    Raises:
        RankError: a rank raised, died, or all were silent for too long.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[Connection, int] = {}
    processes: list[BaseProcess] = []
    try:
        for rank in range(nranks):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(rank, sender, function, args))
            process.start()
            sender.close()
            pipes[receiver] = rank
            processes.append(process)
        yield from _messages(pipes, processes, patience)
    finally:
        for started in processes:
            started.kill()
        for started in processes:
            started.join()
        for receiver in pipes:
            receiver.close()


def _messages(
    pipes: dict[Connection, int], processes: list[BaseProcess], patience: float
) -> Iterator[object]:
    running = dict(pipes)
    deadline = time.monotonic() + patience
    while running:
        ready = wait(list(running), timeout=deadline - time.monotonic())
        if not ready:
            raise RankError(
                f"nothing was heard of ranks {sorted(running.values())} for {patience:g} s"
            )
        deadline = time.monotonic() + patience
        for receiver in ready:
            assert isinstance(receiver, Connection)
            rank = running[receiver]
            try:
                message = receiver.recv()
            except EOFError:
                processes[rank].join()
                raise RankError(f"rank {rank} {_ending(processes[rank].exitcode)}") from None
            if isinstance(message, _Failure):
                raise RankError(f"rank {rank}: {message.text}")
            if isinstance(message, _Done):
                del running[receiver]
            else:
                yield message


def _ending(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"was ended by {signal.Signals(-exitcode).name}"
    return f"exited with status {exitcode}"


def _run(
    rank: int, sender: Connection, function: Callable[..., None], args: tuple[object, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it, for all ranks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        function(rank, sender.send, *args)
    except BenchmarkError as error:
        sender.send(_Failure(str(error)))
    except BaseException:
        sender.send(_Failure(traceback.format_exc()))
    else:
        sender.send(_Done())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
