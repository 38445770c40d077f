"""The arguments and expected results of each collective, for all tests of collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support import dtypes, gpu, reference
from tests.support.rank import Rank

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
MOVING = ("broadcast", "all_gather", "all_to_all", "gather", "scatter")
ALL = (*REDUCING, *MOVING)
_ROOTED = ("reduce", "broadcast", "gather", "scatter")
# Coprime to the numbers of operators and forms.
_STEPS = (1, 3, 5, 11, 13, 17, 23, 31, 43, 61, 83, 113, 151, 199)
SENDS_ALL = ("reduce_scatter", "all_to_all", "scatter")  # a block for every rank


@dataclass(frozen=True)
class Case:
    """One call of one collective, the same on every rank."""

    collective: str
    dtype: str
    count: int  # of one block
    op: str = ""
    in_place: bool = False
    stream: bool = False
    root: int = 0

    def __str__(self) -> str:
        parts = [self.collective, self.dtype, f"count={self.count}", self.op]
        parts += ["in place" if self.in_place else "out", "stream" if self.stream else "sync"]
        if self.collective in _ROOTED:
            parts.append(f"root={self.root}")
        return " ".join(filter(None, parts))


class Runner:
    """Runs the calls of one rank and checks their results."""

    def __init__(self, rank: Rank, config: nccl.CollConfig | None = None) -> None:
        self.rank = rank
        self.config = config  # of every call
        self.comm = rank.comm
        self.memory = rank.memory
        self.exact = rank.provider == "host"
        self._without = gpu.without(rank.provider)
        self._stream: nccl.Stream | None = None
        self._inputs: tuple[object, list[np.ndarray]] = (None, [])
        self._ops: dict[tuple[str, str], tuple[nccl.RedOp, Any]] = {}

    def inputs(self, case: Case) -> list[np.ndarray]:
        """The inputs of all ranks, identical on each rank."""
        blocks = self.rank.nranks if case.collective in SENDS_ALL else 1
        key = (case.dtype, case.count * blocks)
        if self._inputs[0] != key:
            generators = np.random.default_rng([case.count, blocks]).spawn(self.rank.nranks)
            # Repetition builds large inputs cheaply. No chunk is a multiple of this prime.
            drawn = min(key[1], 65_537)
            self._inputs = (
                key,
                [np.resize(dtypes.sample(case.dtype, drawn, rng), key[1]) for rng in generators],
            )
        return self._inputs[1]

    def op(self, case: Case) -> nccl.RedOp | None:
        """The operator, or None for the default. Operators with a scalar are created once."""
        if not case.op.startswith("PRE_MUL_SUM"):
            return None if case.op == "SUM" and case.count % 2 else getattr(nccl.RedOp, case.op)
        key = (case.op, case.dtype)
        if key not in self._ops:
            scalar: Any = reference.scalar_of(case.dtype, self.rank.rank)
            if case.op.endswith("address"):
                scalar = self.memory.put(np.array([scalar], dtypes.numpy_dtype(case.dtype)))
            self._ops[key] = self.comm.pre_mul_sum(scalar, case.dtype), scalar
        return self._ops[key][0]

    def run(self, case: Case) -> np.ndarray | None:  # noqa: PLR0912
        """Run the call, check it, and return the result (None on a rank without one).

        Raises:
            AssertionError: the result is wrong, or other memory was written to.
        """
        inputs = self.inputs(case)
        own, rank, nranks, count = (
            inputs[self.rank.rank],
            self.rank.rank,
            self.rank.nranks,
            case.count,
        )
        is_root = rank == case.root
        receives = case.collective not in ("reduce", "gather") or is_root
        keywords: dict[str, Any] = {} if self.config is None else {"config": self.config}
        if case.collective in REDUCING:
            keywords["op"] = self.op(case)
        if case.collective in _ROOTED:
            keywords["root"] = case.root
        if case.stream:
            if self._stream is None:
                self._stream = self.rank.stream()
            keywords["stream"] = self._stream

        everything = self.memory.put(_all_blocks(case, own, rank, nranks))
        tensor: Any = everything
        out: Any = None
        if not case.in_place:
            tensor = self.memory.put(own)
            blocks = nranks if case.collective in ("all_gather", "all_to_all", "gather") else 1
            empty = np.ones(count * blocks, own.dtype)
            out = self.memory.put(empty)
            if receives or count % 2:  # a rank that receives nothing may omit it
                keywords["out"] = out
            if case.collective == "scatter" and not is_root:
                tensor = None
        getattr(self.comm, case.collective)(tensor, **keywords)
        if self._stream is not None:
            self._stream.synchronize()

        if not case.in_place:
            if tensor is not None:
                reference.check_bits(self.memory.get(tensor), own)
            if not receives:
                reference.check_bits(self.memory.get(out), empty)
                return None
            result = self.memory.get(out)
        else:
            after = self.memory.get(everything)
            if not receives:
                reference.check_bits(after, own)
                return None
            result = _own_result(case, after, rank)
        self._check(case, result, inputs)
        return result

    def _check(self, case: Case, result: np.ndarray, inputs: list[np.ndarray]) -> None:
        rank, count = self.rank.rank, case.count
        block = slice(rank * count, (rank + 1) * count)
        match case.collective:
            case "all_reduce" | "reduce":
                reference.check(result, inputs, case.op, exact=self.exact)
            case "reduce_scatter":
                blocks = [array[block] for array in inputs]
                reference.check(result, blocks, case.op, exact=self.exact)
            case "broadcast":
                reference.check_bits(result, inputs[case.root])
            case "all_gather" | "gather":
                reference.check_bits(result, np.concatenate(inputs))
            case "all_to_all":
                reference.check_bits(result, np.concatenate([array[block] for array in inputs]))
            case "scatter":
                reference.check_bits(result, inputs[case.root][block])

    def run_all(self, cases: Iterator[Case]) -> int:
        """Run all cases despite failures, and return their number.

        Raises:
            AssertionError: some failed; the text names them.
        """
        wrong: list[str] = []
        number = 0
        for case in cases:
            if case.dtype in self._without:
                continue
            number += 1
            nranks = self.rank.nranks
            if gpu.rejects(self.rank.provider, nranks, case.dtype, case.op, case.count):
                with pytest.raises(nccl.NcclInvalidArgumentError, match="8-bit floats"):
                    self.run(case)
                continue
            try:
                self.run(case)
            except AssertionError as error:
                wrong.append(f"{case}: {error}")
            except Exception as error:
                raise RuntimeError(f"{case}: {type(error).__name__}: {error}") from error
        if wrong:
            raise AssertionError(
                f"{len(wrong)} of {number} calls were wrong:\n" + "\n".join(wrong[:8])
            )
        return number


def _all_blocks(case: Case, own: np.ndarray, rank: int, nranks: int) -> np.ndarray:
    """The buffer of an in-place call, with room for all blocks if the call gathers."""
    gathers = case.collective == "all_gather" or (case.collective == "gather" and rank == case.root)
    if case.collective == "scatter" and rank != case.root:
        return np.zeros(case.count, own.dtype)
    if not gathers:
        return own
    blocks = np.zeros(case.count * nranks, own.dtype)
    blocks[rank * case.count : (rank + 1) * case.count] = own
    return blocks


def _own_result(case: Case, buffer: np.ndarray, rank: int) -> np.ndarray:
    """The part of a buffer written by an in-place call."""
    if case.collective == "reduce_scatter" or (case.collective == "scatter" and rank == case.root):
        return buffer[rank * case.count : (rank + 1) * case.count]
    return buffer


def product(
    collective: str,
    nranks: int,
    names: tuple[str, ...],
    counts: tuple[int, ...],
    operators: Callable[[str], tuple[str, ...]] = dtypes.operators,
) -> Iterator[Case]:
    """Every dtype x count x operator x (in place, out) x (sync, stream), with alternating roots."""
    places = (False,) if collective == "all_to_all" else (False, True)
    number = 0
    for name in names:
        for count in counts:
            for op in operators(name) if collective in REDUCING else ("",):
                for in_place in places:
                    for stream in (False, True):
                        number += 1
                        yield Case(
                            collective, name, count, op, in_place, stream, number // 3 % nranks
                        )


def thin(cases: Iterator[Case], step: int, first: int = 0) -> Iterator[Case]:
    """Every step-th case. All forms are still tested if step is coprime to their number."""
    for number, case in enumerate(cases):
        if number % step == first % step:
            yield case


def few(cases: Iterator[Case], rank: Rank) -> Iterator[Case]:
    """Select as many cases as this rank's provider has time for, spread so that every form is still
    tested: every step-th case, then every step-th of their successors.
    """
    listed = list(cases)
    most = gpu.most_cases(rank.provider, rank.nranks) or len(listed)
    step = next(prime for prime in _STEPS if prime * most >= len(listed))
    order = sorted(range(len(listed)), key=lambda number: (number % step, number))
    return (listed[number] for number in sorted(order[:most]))
