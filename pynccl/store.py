"""The subset of torch.distributed's Store interface that pynccl requires."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Protocol, TypeVar

from pynccl import _C

__all__ = ["Store", "ask", "joined_key"]

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


def ask(call: Callable[[Future[_T]], _T]) -> Future[_T]:
    """Call a store on a thread, because some calls have no time limit.

    A client of torch's TCPStore waits forever if the process that hosts the store is stopped, or
    was killed while a child of it keeps the socket open.

    Args:
        call: uses the store. It receives the future, and returns if the future is cancelled.

    Returns:
        A future of the result. Its cancel() ends the wait for it immediately.
    """
    answer: Future[_T] = Future()

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
