"""Concurrent execution of a request to an engine and the transfer that it asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pynccl.weights.report import Report

__all__ = ["beside"]


def beside(ask: Callable[[], object], send: Callable[[], Report]) -> Report:
    """Ask an engine, on a thread, to receive a version while it is sent.

    Raises:
        Exception: raised by sending, else by the engine.
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
