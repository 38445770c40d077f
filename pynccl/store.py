"""What pynccl needs of a store of torch.distributed. Anything with these methods is one."""

from typing import Protocol

__all__ = ["Store", "joined_key"]


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
