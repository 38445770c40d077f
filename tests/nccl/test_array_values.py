"""Proves by random cases that a collective on any array gives NumPy's result or an error: sliced,
strided, transposed, lazy, empty, read-only, misaligned, of every framework. An error writes
nothing, and a result nothing else.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import dtypes, gpu, reference
from tests.support.launcher import Launcher
from tests.support.memory import OnlyDlpack
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_CASES = 3000 if FULL else 500
_IN_PLACE = ("all_reduce", "broadcast", "reduce")
_COLLECTIVES = (
    *_IN_PLACE,
    "send_recv",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
)
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


class _Interface:
    """Only __array_interface__."""

    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__
        self.dtype = array.dtype  # the names of types that NumPy does not define
        self._array = array


class _Subclass(np.ndarray):
    pass


# Views of n elements of a larger array, contiguous or not.
_VIEWS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "offset": lambda a, n: a[3 : 3 + n],
    "matrix": lambda a, n: a[:n].reshape(2, n // 2) if n % 2 == 0 else a[:n],
    "column": lambda a, n: a[: 2 * n].reshape(n, 2)[:, 1],
    "strided": lambda a, n: a[: 2 * n : 2],
    "reversed": lambda a, n: a[:n][::-1],
    "transposed": lambda a, n: a[:n].reshape(2, n // 2).T if n % 2 == 0 else a[:n],
    "thin": lambda a, n: a[: 3 * n].reshape(n, 3)[:, :1],
    "repeated": lambda a, n: np.broadcast_to(a[:1], (n,)),
    "0-d": lambda a, n: a[2:3].reshape(()) if n == 1 else a[2 : 2 + n],
    "new axes": lambda a, n: a[None, 5 : 5 + n, None],
}


def _none(array: Any) -> Any:  # noqa: ANN401
    return array


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.view()
    array.flags.writeable = False
    return array


def _tensor(array: np.ndarray) -> Any:  # noqa: ANN401
    import torch

    if not array.flags.writeable:
        raise ValueError("torch warns of read-only memory")
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        bits = array.view(f"i{array.dtype.itemsize}")
        return torch.from_numpy(bits).view(dtypes.torch_dtype(array.dtype))
    return torch.from_numpy(array)


def _neg(array: np.ndarray) -> Any:  # noqa: ANN401
    return _tensor(array)._neg_view()


def _conj(array: np.ndarray) -> Any:  # noqa: ANN401
    tensor = _tensor(array)
    return tensor.conj() if tensor.is_complex() else tensor._neg_view()


def _parameter(array: np.ndarray) -> Any:  # noqa: ANN401
    import torch

    tensor = _tensor(array)
    return torch.nn.Parameter(tensor, requires_grad=tensor.dtype.is_floating_point)


def _swapped(array: np.ndarray) -> np.ndarray:
    return array.view(array.dtype.newbyteorder())


# Conversions of the array, and whether the result can be read and written if it is contiguous.
_FORMS: dict[str, tuple[Callable[[np.ndarray], Any], bool, bool]] = {
    "numpy": (_none, True, True),
    "subclass": (lambda a: a.view(_Subclass), True, True),
    "read-only": (_read_only, True, False),
    "swapped": (_swapped, False, False),
    "masked": (np.ma.masked_array, False, False),
    "torch": (_tensor, True, True),
    "parameter": (_parameter, True, True),
    "negated": (_neg, False, False),
    "conjugated": (_conj, False, False),
    "dlpack": (lambda a: OnlyDlpack(_tensor(a)), True, True),
    "interface": (_Interface, True, True),
    "read-only interface": (lambda a: _Interface(_read_only(a)), True, False),
}


@dataclasses.dataclass(frozen=True)
class _Side:
    """The form of one buffer of a call."""

    view: str
    form: str
    shift: float  # from its alignment: a fraction of an element, rounded up to bytes

    def make(self, values: np.ndarray) -> _Made | None:
        """A buffer with these values, or None if the form has no such buffer."""
        n = values.size
        width = values.dtype.itemsize
        raw = np.zeros((3 * n + 17) * width, np.uint8)
        start = min(math.ceil(self.shift * width), width - 1)
        whole = raw[start : start + (3 * n + 16) * width].view(values.dtype)
        array = _VIEWS[self.view](whole, n)
        if self.view == "repeated":
            if n:
                whole[0] = values[0]
        else:
            array[...] = values.reshape(array.shape)
        make, readable, writable = _FORMS[self.form]
        try:
            made = make(array)
        except (TypeError, ValueError, RuntimeError):  # torch has no negative strides, for one
            return None
        contiguous = array.flags.c_contiguous
        if self.form == "swapped" and width == 1:
            readable = writable = True  # one byte has no order
        writable = writable and array.flags.writeable
        return _Made(raw, array, made, readable and contiguous, writable and contiguous)


@dataclasses.dataclass(frozen=True)
class _Made:
    """A buffer, the memory around it, and whether it can be read and written."""

    raw: np.ndarray
    array: np.ndarray
    given: Any
    readable: bool
    writable: bool

    def values(self) -> np.ndarray:
        return np.array(self.array).reshape(-1)


@dataclasses.dataclass(frozen=True)
class _Case:
    collective: str
    dtype: str
    count: int  # elements of a block
    op: str
    root: int
    in_place: bool
    source: _Side
    target: _Side


def _side(rng: random.Random) -> _Side:
    plain = rng.random() < 0.4
    return _Side(
        "offset" if plain else rng.choice(list(_VIEWS)),
        rng.choice(("numpy", "torch") if plain else list(_FORMS)),
        rng.choice((0, 0.01, 0.5, 0.99)) if rng.random() < 0.25 else 0,
    )


def _case(rng: random.Random) -> _Case:
    collective = rng.choice(_COLLECTIVES)
    dtype = rng.choice(dtypes.ALL)
    return _Case(
        collective,
        dtype,
        rng.choice((0, 1, 2, 2, 6, 6, 64, 1000, 6007)),
        rng.choice(dtypes.operators(dtype)[:3]),
        rng.randrange(2),
        collective in _IN_PLACE and rng.random() < 0.5,
        _side(rng),
        _side(rng),
    )


def _expected(case: _Case, inputs: list[np.ndarray], rank: int) -> np.ndarray | None:
    """The result of a rank, or None if it receives nothing."""
    own = slice(rank * case.count, (rank + 1) * case.count)
    everything, blocks = np.concatenate(inputs), [values[own] for values in inputs]
    reduce, at_root = reference.reduce, rank == case.root
    results: dict[str, Callable[[], np.ndarray | None]] = {
        "all_reduce": lambda: reduce(inputs, case.op),
        "reduce": lambda: reduce(inputs, case.op) if at_root else None,
        "broadcast": lambda: inputs[case.root],
        "send_recv": lambda: inputs[1 - rank],
        "all_gather": lambda: everything,
        "gather": lambda: everything if at_root else None,
        "reduce_scatter": lambda: reduce(blocks, case.op),
        "all_to_all": lambda: np.concatenate(blocks),
        "scatter": lambda: blocks[case.root],
    }
    return results[case.collective]()


def _call(comm: Any, case: _Case, source: Any, target: Any) -> None:  # noqa: ANN401
    from pynccl import nccl

    op = getattr(nccl.RedOp, case.op)
    other = 1 - comm.rank
    if case.collective == "send_recv":
        with nccl.group():
            comm.send(source, other)
            comm.recv(target, other)
        return
    arguments = [source]
    if case.collective in _ROOTED:
        arguments.append(case.root)
    if case.collective in ("all_reduce", "reduce", "reduce_scatter"):
        arguments.append(op)
    out = {} if target is source else {"out": target}
    getattr(comm, case.collective)(*arguments, **out)


def _run(rank: Rank, seed: int, cases: int) -> tuple[int, int]:
    """The numbers of cases with a result and with an error."""
    results = errors = 0
    without = gpu.without(rank.provider)
    for number in range(cases):
        rng = random.Random(f"{seed}:{number}")
        case = _case(rng)
        if case.dtype in without:
            continue
        try:
            done = _run_case(rank, case, number)
        except AssertionError as error:
            raise AssertionError(f"{seed}:{number}: {case}: {error}") from error
        results += done is True
        errors += done is False
    return results, errors


# The blocks that each rank sends and receives, if not one of each.
_BLOCKS = {
    "all_gather": (1, 2),
    "gather": (1, 2),
    "reduce_scatter": (2, 1),
    "scatter": (2, 1),
    "all_to_all": (2, 2),
}


def _buffers(case: _Case, number: int, rank: Rank) -> tuple[Any, Any, list[np.ndarray]]:
    """The two buffers, None for an impossible one, and the inputs of all ranks."""
    sends, receives = _BLOCKS.get(case.collective, (1, 1))

    def sample(side: _Side, blocks: int, seed: int) -> np.ndarray:
        values = dtypes.sample(case.dtype, blocks * case.count, np.random.default_rng(seed))
        return np.repeat(values[:1], values.size) if side.view == "repeated" else values

    inputs = [sample(case.source, sends, number * 10 + r) for r in range(rank.nranks)]
    source = case.source.make(inputs[rank.rank])
    if case.in_place:
        return source, source, inputs
    return source, case.target.make(sample(case.target, receives, number * 10 + 9)), inputs


def _run_case(rank: Rank, case: _Case, number: int) -> bool | None:
    """Whether it gave a result, or None for an impossible case."""
    source, target, inputs = _buffers(case, number, rank)
    if source is None or target is None:
        return None
    refused = not source.readable or not target.writable
    # A rank other than the root checks only one of the two, so the ranks may disagree.
    if case.collective in ("gather", "scatter") and (
        refused or not source.writable or not target.readable
    ):
        return None
    before = source.raw.copy(), target.raw.copy()
    error = ""
    try:
        _call(rank.comm, case, source.given, target.given)
    except (TypeError, ValueError) as raised:
        error = str(raised)
    if refused:
        assert error.startswith(("tensor: ", "out: ")), error or "not refused"
        np.testing.assert_array_equal(source.raw, before[0])
        np.testing.assert_array_equal(target.raw, before[1])
        return False
    assert not error, error
    if target is not source:
        np.testing.assert_array_equal(source.raw, before[0], "the input was written")
    expected = _expected(case, inputs, rank.rank)
    if expected is None:
        np.testing.assert_array_equal(target.raw, before[1], "written without a result")
    else:
        reference.check_bits(target.values(), expected)
        # Except for its elements, the memory is unchanged.
        after = target.raw.copy()
        target.raw[:] = before[1]
        elements = target.array.copy()
        target.raw[:] = after
        target.array[...] = elements
        np.testing.assert_array_equal(target.raw, before[1], "something else was written")
    return True


@pytest.mark.parametrize("seed", range(4) if FULL else [int(os.environ.get("PYNCCL_SEED", "0"))])
def test_random_arrays(launch: Launcher, seed: int) -> None:
    for results, errors in launch(2, _run, seed, _CASES, timeout=240):
        assert results > _CASES / 8
        assert errors > _CASES / 8


@on_ranks(1, fresh=True)
def test_lazy_tensors_before_the_layout_is_known(rank: Rank) -> None:
    """It cannot be determined while a mode replaces tensors, nor if torch disagrees with it. Until
    then, each tensor is checked by its methods.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Parameters(TorchFunctionMode):
        def __torch_function__(
            self,
            function: Callable[..., object],
            _types: object,
            args: tuple[object, ...] = (),
            options: dict[str, object] | None = None,
        ) -> object:
            made = function(*args, **(options or {}))
            return torch.nn.Parameter(made) if function is torch.zeros else made

    tensor = torch.tensor([1 + 2j])

    def refused() -> None:
        with pytest.raises(ValueError, match=r"^tensor: is lazily conjugated"):
            rank.comm.all_reduce(tensor.conj())

    with pytest.MonkeyPatch.context() as patch:
        keys = torch._C._dispatch_keys(tensor)
        patch.setattr(torch._C, "_dispatch_keys", lambda _: keys)
        refused()
    with Parameters():
        rank.comm.all_reduce(tensor)
    refused()
