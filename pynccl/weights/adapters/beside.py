"""The parts that adapters for servers share: a session, and an update of an engine's weights."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

from pynccl.weights.errors import WeightsError
from pynccl.weights.keys import key_to_pass
from pynccl.weights.meeting import own_host
from pynccl.weights.report import Report
from pynccl.weights.sender import WeightSender
from pynccl.weights.wire import Deadline

__all__ = ["beside", "open_session"]

_GRACE = 5.0  # seconds in which an engine answers after a failure, and again after an abort


def open_session(
    receivers: int, timeout: float, host: str | None, key: str | None
) -> tuple[WeightSender, dict[str, Any]]:
    """Open a session that an engine's workers join.

    Args:
        receivers: the number of workers.
        timeout: seconds for each wait.
        host: the address at which this process listens; None determines one.
        key: of the session; None uses PYNCCL_WEIGHTS_KEY, else a new one.

    Returns:
        The sender, and the workers' arguments, with the key unless it is in the environment.
    """
    key = key or key_to_pass()
    host = own_host() if host is None else host
    sender = WeightSender(f"{host}:0", receivers=receivers, timeout=timeout, key=key)
    info: dict[str, Any] = {"address": sender.address, "timeout": timeout}
    if key is not None:
        info["key"] = key
    return sender, info


def beside(
    sender: WeightSender,
    ask: Callable[[], object],
    send: Callable[[], Report],
    finish: Callable[[], object],
    *,
    asks_here: bool = False,
) -> Report:
    """Ask an engine to receive a version while it is sent, and finish the update.

    If the engine fails before the version is sent, or does not answer after the sender has failed,
    the session is aborted. All waits for the engine after a failure have one time limit, except for
    calls that this thread makes itself.

    Args:
        sender: sends the version.
        ask: requests the version from the engine.
        send: calls sender.send().
        finish: ends the update, even after a failure; its error then is ignored.
        asks_here: whether this thread asks and another one sends, instead of the reverse.

    Returns:
        The sender's report.

    Raises:
        Exception: raised by the engine, with the sender's as its cause; else by the sender.
    """
    limit = functools.cache(lambda: Deadline(2 * _GRACE))  # begins at the first failure
    try:
        report = _beside(sender, ask, send, limit, asks_here=asks_here)
    except BaseException:

        def try_to_finish() -> None:
            with contextlib.suppress(Exception):
                finish()

        if asks_here:
            try_to_finish()
        else:
            _start(try_to_finish).join(limit().left())
        raise
    finish()
    return report


def _beside(
    sender: WeightSender,
    ask: Callable[[], object],
    send: Callable[[], Report],
    limit: Callable[[], Deadline],
    *,
    asks_here: bool,
) -> Report:
    asked: list[BaseException] = []
    answered = threading.Event()
    sent: list[BaseException] = []
    reports: list[Report] = []

    def run_ask() -> None:
        try:
            ask()
        except BaseException as error:
            asked.append(error)
            if not reports and not sent:
                sender.abort()
        finally:
            answered.set()

    def run_send() -> None:
        try:
            reports.append(send())
        except BaseException as error:
            sent.append(error)
            # The engine may wait for a version that never begins. Ctrl-C does not wait for it.
            grace = limit().within(_GRACE)
            if isinstance(error, Exception) and not answered.wait(grace.left()):
                sender.abort()

    here, there = (run_ask, run_send) if asks_here else (run_send, run_ask)
    thread = _start(there)
    here()
    if not sent or isinstance(sent[0], Exception):  # Ctrl-C does not wait
        thread.join(limit().left() if sent else None)
    error = sent[0] if sent else None
    if asked and (error is None or isinstance(error, WeightsError)):
        raise asked[0] from error
    if error is not None:
        raise error
    return reports[0]


def _start(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, name="pynccl-weights-request", daemon=True)
    thread.start()
    return thread
