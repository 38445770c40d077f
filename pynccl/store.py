"""The subset of torch.distributed's Store interface that pynccl requires."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Protocol, TypeVar, cast

from pynccl import _C

__all__ = ["Answer", "Store", "ask", "joined_key"]

_GRACE = 0.5  # seconds past a time limit for a store to answer
_PATIENCE = 5.0  # seconds without an answer of a store that was slow before

_S = TypeVar("_S")
_T = TypeVar("_T")


class Store(Protocol):
    """The methods of torch.distributed.Store that pynccl uses; any object with them is accepted.

    Keys are shared by all ranks. An error raised by a store propagates unchanged, or is named in
    the text of the error that it causes.
    """

    def set(self, key: str, value: str, /) -> object:
        """Set a key.

        Args:
            key: the key.
            value: its new value.

        Returns:
            Any value; it is ignored.
        """

    def get(self, key: str, /) -> bytes:
        """Return the value of an existing key.

        Args:
            key: the key.

        Returns:
            Its value.
        """

    def add(self, key: str, amount: int, /) -> int:
        """Add to the integer value of a key, which starts at 0.

        Args:
            key: the key.
            amount: the number to add.

        Returns:
            The sum.
        """

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys exist, without waiting for them.

        Args:
            keys: the keys.

        Returns:
            True if every key exists.
        """

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key if it has the expected value.

        Args:
            key: the key.
            expected: the expected value, or "" for a key that does not exist.
            desired: its new value.

        Returns:
            The value after the call.
        """


def joined_key(comm: str) -> str:
    """Return the key that maps a communicator's id on ranks that joined to its original id.

    Args:
        comm: the id on the ranks that joined.

    Returns:
        The key.
    """
    return f"pynccl/joined/{comm}"


class Answer(Future[_T]):
    """The result of a function that calls a store on another thread: see ask().

    Attributes:
        heard: when the store answered last, or when the thread was started, by time.monotonic().
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard = time.monotonic()

    def note(self, store: _S) -> _S:
        """Return the store with methods that note when it answers.

        Args:
            store: the store.

        Returns:
            An object with the methods of the store.
        """
        return cast("_S", _Noted(store, self))

    def arrives(self, timeout: float) -> bool:
        """Wait for the result, up to the time limit and for the last answer of a slow store.

        The function must end at the time limit if the store answers.

        Args:
            timeout: the time limit in seconds.

        Returns:
            True if there is a result or an exception. False if the store is silent.

        Raises:
            CancelledError: it was cancelled.
        """
        limit = time.monotonic() + timeout + _GRACE
        patience = min(timeout, _PATIENCE) + _GRACE
        while not self.done():
            # A slow store may have to answer several calls after the time limit.
            until = min(max(limit, self.heard + patience), limit + _PATIENCE)
            left = until - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(FutureTimeoutError):
                self.exception(min(left, threading.TIMEOUT_MAX))
        return True


class _Noted:
    """A store whose methods note in an Answer when they return."""

    def __init__(self, store: object, answer: Answer[Any]) -> None:
        self._store = store
        self._answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(*arguments: object) -> Any:  # noqa: ANN401
            value = method(*arguments)
            self._answer.heard = time.monotonic()
            return value

        return call


def ask(call: Callable[[Answer[_T]], _T]) -> Answer[_T]:
    """Call a store on a thread, because some calls have no time limit.

    A client of torch's TCPStore waits forever if the process that hosts the store is stopped, or
    was killed while a child of it keeps the socket open.

    Args:
        call: uses the store. It receives the Answer, and returns if that is cancelled.

    Returns:
        The Answer, a future of the result. Its cancel() ends the wait for it immediately.
    """
    answer: Answer[_T] = Answer()

    def run() -> None:
        _C.sleep_at_exit()  # in case the store answers after the interpreter has ended
        with contextlib.suppress(InvalidStateError):  # cancelled
            try:
                value = call(answer)
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(value)

    threading.Thread(target=run, name="pynccl-store", daemon=True).start()
    return answer
