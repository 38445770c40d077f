"""What pynccl needs of a store of torch.distributed. Anything with these methods is one."""

from typing import Protocol

__all__ = ["Store", "joined_key"]


class Store(Protocol):
    """The methods of torch.distributed.Store that are used."""

    def set(self, key: str, value: str, /) -> object:
        """Set a key."""

    def get(self, key: str, /) -> bytes:
        """The value of a key that exists."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number of a key, from 0; the sum."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key where it has the expected value, "" for none; the value that it has then."""


def joined_key(comm: str) -> str:
    """The key of what the other ranks call a communicator that has this id on those that joined."""
    return f"pynccl/joined/{comm}"
