"""A request to an engine, and what it asks for, at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pynccl.weights.report import Report

__all__ = ["beside"]


def beside(ask: Callable[[], object], send: Callable[[], Report]) -> Report:
    """Ask an engine to receive a version, on a thread, while it is sent.

    Raises:
        Exception: what sending has raised, else what the engine has raised.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            ask()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="pynccl-weights-request", daemon=True)
    thread.start()
    report = send()
    thread.join()
    if errors:
        raise errors[0]
    return report
