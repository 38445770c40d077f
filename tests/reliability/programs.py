"""Random programs: the same steps for all ranks from a seed, with their expected results, and with
a mistake of one rank.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

DTYPES = ("float32", "float64", "float16", "int32", "uint8", "int64")
_COMBINE = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum, "PROD": np.multiply}
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = (*REDUCING, "broadcast", "gather", "scatter", "all_gather", "all_to_all")
MISTAKES = ("skip", "swap", "root", "count", "dead", "stopped")
_COUNTS = (0, 1, 7, 100, 3000, 70_000)  # staged, direct


@dataclass(frozen=True)
class Call:
    """A collective, or a message from one rank to another.

    Attributes:
        comm: index of the communicator.
        name: name of the collective; "message".
        seed: seed of its contents.
        root: rank in the communicator; of a message the sender.
        target: of a message the receiver.
    """

    comm: int
    name: str
    dtype: str
    count: int
    seed: int
    root: int = 0
    target: int = 0
    op: str = ""

    @property
    def signature(self) -> tuple[object, ...]:
        """The properties that must be equal on all ranks."""
        return self.name, self.dtype, self.count, self.root, self.op

    def input(self, member: int, nranks: int) -> np.ndarray:
        """The data that a rank of the communicator sends: small numbers with exact results."""
        blocks = nranks if self.name in ("reduce_scatter", "all_to_all", "scatter") else 1
        numbers = np.random.default_rng((self.seed, member)).integers(0, 4, self.count * blocks)
        return numbers.astype(self.dtype)

    def output(self, member: int, nranks: int) -> np.ndarray | None:
        """The data that a rank receives."""
        inputs = [self.input(rank, nranks) for rank in range(nranks)]
        receiver = {"message": self.target, "gather": self.root, "reduce": self.root}
        if receiver.get(self.name, member) != member:
            return None
        if self.name in REDUCING:
            total = functools.reduce(_COMBINE[self.op], inputs)
        elif self.name in ("broadcast", "scatter", "message"):
            total = inputs[self.root]
        elif self.name == "all_to_all":
            blocks = [array.reshape(nranks, self.count)[member] for array in inputs]
            return np.concatenate(blocks)
        else:
            total = np.concatenate(inputs)
        in_blocks = self.name in ("reduce_scatter", "scatter")
        return total.reshape(nranks, self.count)[member] if in_blocks else total


@dataclass(frozen=True)
class Step:
    """Calls issued together, in a group if there are several; or a split; or a signal.

    Attributes:
        calls: of one or more communicators.
        stream: its number; None for calls that block.
        splits: the new communicator.
        signal: the signal that this rank sends to itself.
    """

    calls: tuple[Call, ...] = ()
    stream: int | None = None
    splits: int | None = None
    signal: str = ""


@dataclass(frozen=True)
class Mistake:
    """Attributes:
    kind: one of MISTAKES.
    rank: the rank that makes it.
    steps: the affected steps; it begins in the first one.
    text: a description.
    names: the affected operations, one of which an error may name instead of the rank.
    """

    kind: str
    rank: int
    steps: tuple[int, ...]
    text: str
    names: tuple[str, ...]


class Program:
    """Attributes:
    nranks: of the world.
    comms: the members of each communicator, ranks of the world; the first one has all.
    steps: the steps of all ranks, each with a part per rank.
    """

    def __init__(self, seed: int, nranks: int | None = None) -> None:
        self.seed = seed
        chance = self._chance = random.Random(f"program {seed}")
        drawn = chance.choice((2, 3, 4))
        self.nranks = nranks or drawn
        self.comms = [tuple(range(self.nranks))]
        self.steps: list[Step] = []
        splits_left = chance.randrange(3)
        for _ in range(chance.randrange(4, 25)):
            if splits_left and chance.random() < 0.3:
                splits_left -= 1
                self.steps.append(self._split())
            else:
                self.steps.append(self._step())
        # Steps that wait for all ranks, so that every earlier mistake is an error.
        self._end = len(self.steps)
        for comm in reversed(range(len(self.comms))):
            self.steps.append(Step((Call(comm, "all_reduce", "int64", 3, comm, op="SUM"),)))

    def _split(self) -> Step:
        chance = self._chance
        members = chance.sample(range(self.nranks), chance.randrange(2, self.nranks + 1))
        self.comms.append(tuple(sorted(members)))
        return Step(splits=len(self.comms) - 1)

    def _step(self) -> Step:
        chance = self._chance
        stream = chance.choice((None, None, 0, 1))
        if chance.random() < 0.7:
            return Step((self._call(),), stream)
        comm = chance.randrange(len(self.comms))
        if chance.random() < 0.5:
            return Step(tuple(self._call() for _ in range(chance.randrange(2, 4))), stream)
        pairs = [(a, b) for a in self.comms[comm] for b in self.comms[comm] if a != b]
        chosen = chance.sample(pairs, chance.randrange(1, min(5, len(pairs) + 1)))
        return Step(tuple(self._message(comm, *pair) for pair in chosen), stream)

    def _call(self) -> Call:
        chance = self._chance
        comm = chance.randrange(len(self.comms))
        nranks = len(self.comms[comm])
        if chance.random() < 0.2:
            return self._message(comm, *chance.sample(self.comms[comm], 2))
        name = chance.choice(COLLECTIVES)
        return Call(
            comm,
            name,
            chance.choice(DTYPES),
            chance.choice(_COUNTS),
            chance.getrandbits(32),
            root=chance.randrange(nranks) if name in ROOTED else 0,
            op=chance.choice(tuple(_COMBINE)) if name in REDUCING else "",
        )

    def _message(self, comm: int, source: int, target: int) -> Call:
        chance, members = self._chance, self.comms[comm]
        return Call(
            comm,
            "message",
            chance.choice(DTYPES),
            chance.choice(_COUNTS[1:]),
            seed=chance.getrandbits(32),
            root=members.index(source),
            target=members.index(target),
        )

    def takes_part(self, call: Call, rank: int) -> bool:
        members = self.comms[call.comm]
        if call.name == "message":
            return rank in (members[call.root], members[call.target])
        return rank in members

    def steps_of(self, rank: int, mistake: Mistake | None = None) -> list[Step]:
        """The steps of a rank."""
        steps = list(self.steps)
        if mistake and mistake.rank == rank:
            first, *others = mistake.steps
            match mistake.kind:
                case "skip":
                    steps[first] = Step()
                case "swap":
                    steps[first], steps[others[0]] = steps[others[0]], steps[first]
                case "root" | "count":
                    steps[first] = self._changed(steps[first], mistake.kind)
                case _:
                    name = "SIGKILL" if mistake.kind == "dead" else "SIGSTOP"
                    steps.insert(first, Step(signal=name))
        return [
            replace(step, calls=tuple(c for c in step.calls if self.takes_part(c, rank)))
            for step in steps
        ]

    def _changed(self, step: Step, kind: str) -> Step:
        call, *others = step.calls
        if kind == "count":
            call = replace(call, count=call.count + 1)
        else:
            call = replace(call, root=(call.root + 1) % len(self.comms[call.comm]))
        return replace(step, calls=(call, *others))

    def mistake(self) -> Mistake:
        """A mistake that has an effect."""
        chance = random.Random(f"mistake {self.seed}")
        kinds = list(MISTAKES)
        chance.shuffle(kinds)
        kinds.append("dead")  # is always one
        for kind in kinds:
            if found := list(self._mistakes(kind)):
                return chance.choice(found)
        raise AssertionError("no mistake")

    def _mistakes(self, kind: str) -> Iterator[Mistake]:
        """All mistakes of a kind that have an effect."""
        for number, step in enumerate(self.steps[: self._end]):
            for rank in range(self.nranks):
                names = tuple(call.name for call in step.calls)
                if kind in ("dead", "stopped"):
                    text = f"{kind} rank {rank} at #{number}"
                    yield Mistake(kind, rank, (number,), text, names)
                elif kind == "swap":
                    yield from self._swap(number, rank)
                elif step.calls and self._matters(kind, step, rank):
                    text = f"wrong {kind} of rank {rank} at #{number} {step}"
                    yield Mistake(kind, rank, (number,), text, names)

    def _matters(self, kind: str, step: Step, rank: int) -> bool:
        call = step.calls[0]
        if kind == "skip":
            # Steps without waiters may be omitted: a message that is not received.
            return any(
                call.name != "message" or self.comms[call.comm][call.root] == rank
                for call in step.calls
                if self.takes_part(call, rank)
            )
        if not self.takes_part(call, rank):
            return False
        return kind == "count" or call.name in ROOTED

    def _swap(self, number: int, rank: int) -> Iterator[Mistake]:
        """Two different consecutive collectives of a communicator."""
        pair = self.steps[number : min(number + 2, self._end)]
        if len(pair) < 2 or not all(len(step.calls) == 1 for step in pair):
            return
        first, second = (step.calls[0] for step in pair)
        if (
            "message" not in (first.name, second.name)
            and first.comm == second.comm
            and self.takes_part(first, rank)
            and first.signature != second.signature
        ):
            names = first.name, second.name
            text = f"swap of rank {rank} at #{number} {pair}"
            yield Mistake("swap", rank, (number, number + 1), text, names)
