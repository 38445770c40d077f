"""The teams of NCCL's device API. nccl_device.h defines their arithmetic as inline functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

from pynccl._internal.arguments import integer

__all__ = ["Team"]


@dataclass(frozen=True)
class Team:
    """Ranks with a constant stride, as seen from one of them (ncclTeam_t).

    A Team is an immutable value: it can be compared, hashed and pickled.

    Args:
        nranks: the number of ranks.
        rank: this rank's number in the team.
        stride: the distance between two neighbors, in ranks of the communicator.

    Raises:
        TypeError, ValueError: an invalid argument.
    """

    nranks: int
    rank: int
    stride: int = 1

    def __post_init__(self) -> None:
        for name in ("nranks", "rank", "stride"):
            object.__setattr__(self, name, integer(name, getattr(self, name)))
        if self.nranks < 1:
            raise ValueError(f"nranks: {self.nranks} is below 1")
        if not 0 <= self.rank < self.nranks:
            raise ValueError(f"rank: {self.rank} is out of range for a team of {self.nranks} ranks")
        if self.stride == 0:
            raise ValueError("stride: it is 0")

    def is_member(self, other: Team, rank: SupportsIndex) -> bool:
        """Whether a rank of another team is in this one (ncclTeamRankIsMember).

        Args:
            other: a team of the same communicator, seen from the same rank.
            rank: the rank in other.

        Raises:
            TypeError, ValueError: an invalid argument.
        """
        return self._find(other, other._member(rank)) is not None

    def rank_of(self, other: Team, rank: SupportsIndex) -> int:
        """Convert a rank of another team to a rank of this one (ncclTeamRankToTeam).

        Args:
            other: a team of the same communicator, seen from the same rank.
            rank: the rank in other.

        Raises:
            TypeError, ValueError: an invalid argument, or the rank is not in this team.
        """
        found = self._find(other, other._member(rank))
        if found is None:
            raise ValueError(f"rank: {rank} of {other} is not in {self}")
        return found

    def inner(self, size: SupportsIndex) -> Team:
        """Divide the team into blocks and return this rank's block (ncclTeamInnerFactor).

        Args:
            size: the number of ranks per block, a divisor of nranks.

        Raises:
            TypeError, ValueError: an invalid argument.
        """
        block = self._block(size)
        return Team(block, self.rank % block, self.stride)

    def outer(self, size: SupportsIndex) -> Team:
        """Divide the team into blocks and return one rank per block (ncclTeamOuterFactor).

        The result contains the rank at this rank's position in every block.

        Args:
            size: the number of ranks per block, a divisor of nranks.

        Raises:
            TypeError, ValueError: an invalid argument.
        """
        block = self._block(size)
        return Team(self.nranks // block, self.rank // block, self.stride * block)

    def rank_in_difference(self, subset: Team, index: SupportsIndex) -> int:
        """The index-th rank of this team that is not in a subset (ncclTeamRankInDifference).

        Args:
            subset: a team whose ranks are all in this one.
            index: at least 0 and less than the difference of the numbers of ranks.

        Returns:
            A rank of this team.

        Raises:
            TypeError, ValueError: an invalid argument.
        """
        members = {self._find(subset, rank) for rank in range(subset.nranks)}
        if None in members:
            raise ValueError(f"subset: {subset} is not a part of {self}")
        others = [rank for rank in range(self.nranks) if rank not in members]
        number = integer("index", index)
        if not 0 <= number < len(others):
            raise ValueError(f"index: {number} is out of range for {len(others)} ranks")
        return others[number]

    def _find(self, other: Team, rank: int) -> int | None:
        """Return the rank in this team of a rank of another one; None if it is not a member."""
        steps, rest = divmod((rank - other.rank) * other.stride, self.stride)
        found = self.rank + steps
        return found if rest == 0 and 0 <= found < self.nranks else None

    def _member(self, rank: SupportsIndex) -> int:
        number = integer("rank", rank)
        if not 0 <= number < self.nranks:
            raise ValueError(f"rank: {number} is out of range for {self}")
        return number

    def _block(self, size: SupportsIndex) -> int:
        block = integer("size", size)
        if block < 1 or self.nranks % block != 0:
            raise ValueError(f"size: {block} does not divide the {self.nranks} ranks of the team")
        return block
