"""Calls pynccl with random arguments, valid and malformed, and fails if it crashes.

    python -m tests.stress.arguments 20000 --seed 1

The arguments are passed to the objects, the mirror, pynccl.raw and the readers of arrays, over the
no-op library, which dereferences no address: a crash is therefore in pynccl. Every exception is
allowed except SystemError and a failed cast, which do not name the argument. A call depends only on
the seed and on its number, so --first n repeats call n.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tests.stress import values
from tests.stress.values import Values

__all__ = ["WRONG", "Fuzzer"]

_STUCK = 120.0  # seconds until a call is considered to hang
WRONG = (
    "Unable to cast",  # from pybind11, for a conversion in C++
    "Unable to convert",
    "Could not convert",
)

# The kinds of the parameters of each method; values.py generates the values.
_COLLECTIVE = {"out": "array", "stream": "stream", "count": "integer", "dtype": "dtype"}
_METHODS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "all_reduce": (("array", "op"), {**_COLLECTIVE, "config": "config"}),
    "broadcast": (("array", "integer"), {**_COLLECTIVE, "config": "config"}),
    "reduce": (("array", "integer", "op"), {**_COLLECTIVE, "config": "config"}),
    "all_gather": (("array",), {**_COLLECTIVE, "config": "config"}),
    "reduce_scatter": (("array", "op"), {**_COLLECTIVE, "config": "config"}),
    "all_to_all": (("array",), _COLLECTIVE),
    "gather": (("array", "integer"), _COLLECTIVE),
    "scatter": (("array", "integer"), _COLLECTIVE),
    "send": (("array", "integer"), {"stream": "stream", "count": "integer", "dtype": "dtype"}),
    "recv": (("array", "integer"), {"stream": "stream", "count": "integer", "dtype": "dtype"}),
    "put_signal": (("array", "integer", "any"), {"offset": "integer", "signal": "integer"}),
    "signal": (("integer",), {"signal": "integer", "context": "integer", "stream": "stream"}),
    "wait_signal": (("integers",), {"signal": "integer", "count": "integer", "stream": "stream"}),
    "register": (("array",), {}),
    "register_window": (("array",), {"symmetric": "any", "count": "integer", "dtype": "dtype"}),
    "pre_mul_sum": (("array", "dtype"), {}),
    "mem_alloc": (("shape", "dtype"), {}),
    "split": (("integer", "integer"), {"config": "config"}),
    "shrink": (("integers",), {"config": "config"}),
}
# Without send and recv, which would wait for the other rank.
_MIRROR: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "all_reduce": (("array",), {"op": "any", "group": "any", "async_op": "flag"}),
    "broadcast": (("array", "integer"), {"group": "any", "async_op": "flag"}),
    "reduce": (("array", "integer"), {"op": "any", "async_op": "flag"}),
    "all_gather_single": (("array", "array"), {"async_op": "flag"}),
    "reduce_scatter_single": (("array", "array"), {"op": "any", "async_op": "flag"}),
    "all_gather": (("arrays", "array"), {"async_op": "flag"}),
}
# Functions of pynccl.raw that would free the given addresses, or write to them.
_NOT_RAW = ("ncclMemAlloc", "ncclMemFree", "ncclParamBind")


class Fuzzer:
    """Makes random calls of the objects that it creates."""

    def __init__(self) -> None:
        from benchmarks import calls_rows
        from pynccl import nccl, raw
        from tools import noop

        _, missing = calls_rows.rows(["mirror"])  # initializes it over the no-op library
        if missing:
            raise RuntimeError(f"the mirror cannot be initialized: {missing}")
        path = str(noop.library())
        self._nccl, self._raw = nccl, raw
        self._comm = nccl.Communicator(8, nccl.get_unique_id(path), 0, provider=path)
        self._library = raw.load(path)
        self._functions = [
            name
            for name in dir(self._library)
            if name.startswith("nccl") and name not in _NOT_RAW and "Param" not in name
        ]
        self._makers = values.makers(nccl, raw, self._comm)

    def call(self, rng: random.Random) -> None:
        """Make one random call."""
        made = Values(rng, self._makers)
        kind = rng.choices(
            (self._object, self._in_batch, self._mirror, self._p2p, self._plain_raw, self._make),
            (50, 10, 15, 5, 12, 8),
        )[0]
        kind(made)

    def _object(self, made: Values) -> None:
        name = made.rng.choice(list(_METHODS))
        _pass(made, getattr(self._comm, name), *_METHODS[name])

    def _in_batch(self, made: Values) -> None:
        context: Any = made.rng.choice((self._nccl.group, self._nccl.plan, self._nccl.simulate))()
        with context as batch:
            for _ in range(made.rng.randrange(1, 4)):
                with contextlib.suppress(TypeError, ValueError):
                    self._object(made)
        if isinstance(batch, self._nccl.Plan):
            batch()

    def _mirror(self, made: Values) -> None:
        import pynccl

        name = made.rng.choice(list(_MIRROR))
        work = _pass(made, getattr(pynccl, name), *_MIRROR[name])
        if work is not None and hasattr(work, "wait"):
            work.wait()

    def _p2p(self, made: Values) -> None:
        import pynccl

        operations = [
            pynccl.P2POp(
                made.rng.choice((pynccl.isend, pynccl.irecv)),
                made.make("array"),
                made.make("integer"),
            )
            for _ in range(made.rng.randrange(3))
        ]
        if made.rng.random() < 0.2:
            operations.append(made.make("any"))
        for work in pynccl.batch_isend_irecv(operations):
            work.wait()

    def _plain_raw(self, made: Values) -> None:
        function = getattr(self._library, made.rng.choice(self._functions))
        arguments = [made.make("raw") for _ in range(made.rng.randrange(9))]
        function(*arguments)

    def _make(self, made: Values) -> None:
        nccl = self._nccl
        maker: Callable[..., object] = made.rng.choice(
            (nccl.Config, nccl.CollConfig, nccl.UniqueId, nccl.RedOp, self._communicator)
        )
        names = ("blocking", "cta_policy", "min_ctas", "net_name", "split_share", "algorithm")
        keywords = {name: made.make("any") for name in names if made.rng.random() < 0.3}
        maker(*[made.make("any") for _ in range(made.rng.randrange(3))], **keywords)

    def _communicator(self, *args: Any, **keywords: Any) -> None:  # noqa: ANN401
        with self._nccl.Communicator(*args, provider=self._comm.library.path, **keywords):
            pass


def _pass(
    made: Values, function: Callable[..., Any], positional: tuple[str, ...], named: dict[str, str]
) -> Any:  # noqa: ANN401
    """Call a function, mostly with values of the kinds of its parameters."""
    rng = made.rng
    arguments = [made.make(kind if rng.random() < 0.95 else "any") for kind in positional]
    keywords = {
        name: made.make(kind if rng.random() < 0.9 else "any")
        for name, kind in named.items()
        if rng.random() < 0.12
    }
    if rng.random() < 0.03:
        arguments.append(made.make("any"))
    if rng.random() < 0.03:
        keywords["unknown"] = made.make("any")
    return function(*arguments, **keywords)


def main() -> int:
    """Make the calls. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.arguments")
    parser.add_argument("calls", type=int, help="number of calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    faulthandler.enable()
    fuzzer = Fuzzer()
    outcomes: dict[str, int] = {}
    for number in _watched(range(options.first, options.first + options.calls)):
        outcome = "returned"
        try:
            fuzzer.call(random.Random(f"{options.seed}:{number}"))
        except SystemError as error:
            return _fail(options.seed, number, error)
        except Exception as error:
            outcome = type(error).__name__
            if any(text in str(error) for text in WRONG):
                return _fail(options.seed, number, error)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"{options.calls} calls, seed {options.seed}:", outcomes)
    return 0


def _watched(numbers: range) -> Iterator[int]:
    """Yield the numbers. A call that hangs ends the process with its traceback."""
    for number in numbers:
        if number % 256 == 0:
            faulthandler.dump_traceback_later(_STUCK, exit=True)
        yield number
    faulthandler.cancel_dump_traceback_later()


def _fail(seed: int, number: int, error: Exception) -> int:
    import traceback

    traceback.print_exception(error)
    print(f"call {number} of seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
