"""Buffer contents of a replay, for which results are exact and unique to an operation.

An input is a sequence 0, 1, ..., modulus - 1, 0, 1, ... that begins at a phase which depends on the
communicator, the rank and the operation. The modulus is a prime that is small enough for a
reduction over all ranks to be exact in the dtype.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SCALAR", "Source", "demand", "phase_of"]

_PRIMES = (2, 3, 5, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191)
# The largest number up to which a dtype represents all integers.
_EXACT = {
    "int8": 127,
    "uint8": 255,
    "float16": 2048,
    "bfloat16": 256,
    "float8_e4m3": 16,
    "float8_e5m2": 8,
    "float32": 1 << 24,
}
_INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
_SHORT = ("bfloat16", "float8_e4m3", "float8_e5m2")
SCALAR = 2  # of user-defined operators, which are replayed as pre_mul_sum(2)


class Source(NamedTuple):
    """The contents of an input.

    Attributes:
        mode: "plain": the numbers of the sequence; "power": 1 and 2, or "sign": 1 and -1, for odd
            and even ones; "multiple": multiplied by the number of ranks.
        modulus: of the sequence.
        phase: the first number.
        factor: of "multiple".
    """

    mode: str
    modulus: int
    phase: int
    factor: int = 1

    def at(self, offset: int) -> Source:
        """The same source from an element on."""
        return self._replace(phase=(self.phase + offset) % self.modulus)


def demand(kind: str, op: str | None, dtype: str, nranks: int) -> Source | None:
    """The values for which an operation's result is exact, with phase 0; None if there are none."""
    limit = _EXACT.get(dtype, 1 << 24)
    integer = dtype in _INTEGERS
    if kind not in ("all_reduce", "reduce", "reduce_scatter") or op in ("min", "max", None):
        return _plain(limit)
    if integer and op in ("sum", "prod"):  # they wrap around to the same result in any order
        return _plain(limit)
    if op == "prod":
        return Source("power" if nranks <= 6 else "sign", 8191 if limit > 8191 else 7, 0)
    if op == "avg" and not integer:
        # For multiples of the number of ranks the average is an integer. NCCL may multiply by 1/n.
        power_of_two = nranks & (nranks - 1) == 0
        found = _plain(limit // nranks if power_of_two else limit // (nranks * nranks))
        short = dtype in _SHORT and not power_of_two
        return found._replace(mode="multiple", factor=nranks) if found and not short else None
    return _plain(limit // (nranks if op in ("sum", "avg") else nranks * SCALAR))


def _plain(largest: int) -> Source | None:
    """The sequence whose numbers are at most this large."""
    fitting = [prime for prime in _PRIMES if prime - 1 <= largest]
    return Source("plain", fitting[-1], 0) if fitting else None


def phase_of(communicator: int, sequence: int, rank: int) -> int:
    """Mix the three, so that values that share two of them get different phases in most dtypes."""
    mixed = (communicator * 1_000_003 + sequence) * 10_007 + rank * 7919
    return (mixed ^ mixed >> 13) * 2_654_435_761 & 0xFFFFFFFF
