"""What pynccl needs of a store of torch.distributed. Anything with these methods is one."""

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
    """The methods of torch.distributed.Store that are used; any object with them can be passed.

    Keys are common to all ranks. An error of a store is raised as it is, or named in the text of
    the error that it causes.
    """

    def set(self, key: str, value: str, /) -> object:
        """Set a key.

        Args:
            key: the key.
            value: its new value.

        Returns:
            Anything; it is not used.
        """

    def get(self, key: str, /) -> bytes:
        """The value of a key that exists.

        Args:
            key: the key.

        Returns:
            Its value.
        """

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number of a key, from 0.

        Args:
            key: the key.
            amount: what is added.

        Returns:
            The sum.
        """

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist; it does not wait for them.

        Args:
            keys: the keys.

        Returns:
            True where each of them exists.
        """

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key where it has the expected value.

        Args:
            key: the key.
            expected: the value, "" for a key that does not exist.
            desired: its new value.

        Returns:
            The value that it has afterwards.
        """


def joined_key(comm: str) -> str:
    """The key of what other ranks call a communicator that has this id on those that joined it.

    Args:
        comm: the id on the ranks that joined.

    Returns:
        The key.
    """
    return f"pynccl/joined/{comm}"


def ask(call: Callable[[Future[_T]], _T]) -> Future[_T]:
    """Call a store on a thread, since some calls have no time limit.

    A client of torch's TCPStore waits without end if the store's process is stopped, or was killed
    and has a child that keeps the socket open.

    Args:
        call: uses the store. It gets the future, and returns if that is cancelled.

    Returns:
        A future of what the call returns. Its cancel() ends the wait for it at once.
    """
    answer: Future[_T] = Future()

    def run() -> None:
        _C.sleep_at_exit()  # if the store answers when the interpreter has ended
        with contextlib.suppress(InvalidStateError):  # it was cancelled
            try:
                value = call(answer)
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(value)

    threading.Thread(target=run, name="pynccl-store", daemon=True).start()
    return answer
