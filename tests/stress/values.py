"""Random values for tests.stress.arguments: arguments of each kind, valid and malformed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["Values", "makers"]

Maker = Callable[["Values"], Any]

_DTYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bool", "complex64")
_OTHER_DTYPES = ("int16", ">f4", "<U3", "M8[s]", "f4,i2", "O", "longdouble", "complex256", "V3")
_TYPESTRS = ("<f4", "<f8", "|u1", "<i8", "<f36", "<f", "f4", ">f4", "|V2", "<V2", "<f4x", "", "<c8")
_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, KeyError, BufferError, MemoryError)


class Values:
    """Generates the values of one call."""

    def __init__(self, rng: random.Random, known: Mapping[str, Maker]) -> None:
        self.rng = rng
        self._known = known

    def make(self, kind: str) -> Any:  # noqa: ANN401
        """Return a value of this kind."""
        return self._known[kind](self)

    def pick(self, *things: Any) -> Any:  # noqa: ANN401
        return self.rng.choice(things)


class _Index:
    """An object with __index__, which may raise or have side effects."""

    def __init__(self, result: object, then: Callable[[], object] = lambda: None) -> None:
        self._result, self._then = result, then

    def __index__(self) -> Any:  # noqa: ANN401
        self._then()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class _Given:
    """An object with the given attributes. Reading one that is an exception raises it."""

    def __init__(self, **attributes: object) -> None:
        self._attributes = attributes

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("_attributes") or name not in self._attributes:
            raise AttributeError(name)
        value = self._attributes[name]
        if isinstance(value, Exception):
            raise value
        return value


class _Dlpack:
    """An object with __dlpack__."""

    def __init__(self, device: object, capsule: Callable[[], object]) -> None:
        self._device, self._capsule = device, capsule

    def __dlpack_device__(self) -> Any:  # noqa: ANN401
        if isinstance(self._device, Exception):
            raise self._device
        return self._device

    def __dlpack__(self, *, stream: object = None) -> object:
        return self._capsule()


class _Subclass(torch.Tensor):
    pass


class _Dispatched(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *_: object) -> Any:  # noqa: ANN401
        raise ValueError("an operation of a tensor")


class _Array(np.ndarray):
    pass


def _error(v: Values) -> Exception:
    made: Exception = v.pick(*_ERRORS)("from an argument")
    return made


def _integer(v: Values) -> Any:  # noqa: ANN401
    choice = v.rng.randrange(12)
    if choice < 7:
        return v.pick(0, 1, 2, 7, 8, 16, -1)
    if choice == 7:
        return v.pick(2**31 - 1, -(2**31), 2**32, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30)
    if choice == 8:
        return v.pick(True, np.int64(1), np.uint8(3), np.int32(-1))
    if choice == 9:
        return _Index(v.pick(0, 1, 2, -1, 2**70, "1", None, _error(v)))
    return v.pick(1.0, "1", None, 2.5)


def _items(v: Values, kind: str) -> list[Any]:
    """A list. Some of its items change it while they are read."""
    items: list[Any] = []
    items += [v.make(kind) for _ in range(v.rng.randrange(5))]
    if v.rng.random() < 0.15:
        change = v.pick(items.clear, lambda: items.extend([0] * 5), items.reverse)
        items[v.rng.randrange(len(items) + 1) :] = [_Index(1, change), 1]
    return items


def _sequence(kind: str) -> Maker:
    def make(v: Values) -> Any:  # noqa: ANN401
        items = _items(v, kind)
        return v.pick(items, items, tuple(items), iter(items), dict.fromkeys(range(3), 1))

    return make


def _plain(v: Values) -> np.ndarray:
    n = v.pick(0, 1, 8, 8, 8, 16, 64)
    return np.zeros(n, v.pick(*_DTYPES, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2))


# Changes of a plain NumPy array with at least one element.
_CHANGED_ARRAYS: tuple[Callable[[np.ndarray], Any], ...] = (
    lambda a: a[::2],
    lambda a: a[::-1],
    lambda a: a.reshape(1, -1, 1),
    lambda a: np.stack([a, a]).T,
    np.ma.masked_array,
    lambda a: a.view(_Array),
    lambda a: a.view(np.recarray),
    lambda a: a[:1].reshape(()),
    lambda a: a[:1].reshape(())[()],
    lambda a: np.broadcast_to(a[:1], (3, 5)),
    lambda a: a.view(a.dtype.newbyteorder()),
)


def _numpy(v: Values) -> Any:  # noqa: ANN401
    array = _plain(v) if v.rng.random() < 0.85 else np.zeros(8, v.pick(*_OTHER_DTYPES))
    if v.rng.random() < 0.1:
        array.flags.writeable = False
    if v.rng.random() < 0.6 or not array.size:
        return array
    return v.pick(*_CHANGED_ARRAYS)(array)


_FAKE = FakeTensorMode()
_SPARSE = torch.eye(3).to_sparse()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # quantized tensors are deprecated
    _QUANTIZED = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)

# Changes of a torch tensor.
_CHANGED_TENSORS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda t: t.conj(),
    lambda t: t._neg_view(),
    lambda t: torch.zeros(4, dtype=torch.complex64).conj().imag,
    lambda t: t.to("meta"),
    _FAKE.from_tensor,
    lambda t: _SPARSE,
    lambda t: _QUANTIZED,
    lambda t: torch.nn.Parameter(t, requires_grad=t.dtype.is_floating_point),
    lambda t: t.as_subclass(_Subclass),
    lambda t: torch.Tensor._make_subclass(_Dispatched, t),
    lambda t: t[::2],
    lambda t: t.reshape(1, -1, 1),
    lambda t: torch._efficientzerotensor(4),
    lambda t: torch.zeros(8, dtype=torch.int16),
    lambda t: torch.zeros(8, dtype=torch.float8_e5m2),
)


def _tensor(v: Values) -> Any:  # noqa: ANN401
    dtype = v.pick(torch.float32, torch.complex64, torch.int64, torch.uint8, torch.bfloat16)
    tensor = torch.zeros(v.pick(0, 1, 8, 8, 16), dtype=dtype)
    return tensor if v.rng.random() < 0.5 else v.pick(*_CHANGED_TENSORS)(tensor)


def _interface(v: Values) -> Any:  # noqa: ANN401
    """An object with an array interface, of which a few parts may be wrong."""
    array = np.zeros(8, np.float32)
    interface: dict[str, Any] = {
        "shape": (8,),
        "typestr": "<f4",
        "data": (array.ctypes.data, False),
        "version": 3,
    }
    wrong: dict[str, Maker] = {
        "shape": lambda v: v.pick(
            tuple(_items(v, "integer")), _items(v, "integer"), (2, 2, 2), (-8,), (2**62, 2**62), ()
        ),
        "typestr": lambda v: v.pick(*_TYPESTRS, v.make("any")),
        "data": lambda v: v.pick(
            (v.make("integer"), v.pick(True, False, None, 2)), v.make("any"), (0, False), b"1234"
        ),
        "strides": lambda v: v.pick((4,), (8,), (-4,), (3,), (), (4, 4), None, v.make("any")),
        "mask": lambda v: v.make("any"),
    }
    for key in v.rng.sample(list(wrong), v.pick(0, 1, 1, 2)):
        if v.rng.random() < 0.15:
            interface.pop(key, None)
        else:
            interface[key] = wrong[key](v)
    name = v.pick("__array_interface__", "__array_interface__", "__cuda_array_interface__")
    given = interface if v.rng.random() < 0.9 else v.make("any")
    return _Given(**{name: given, "kept": array, "dtype": v.pick(array.dtype, "float32", 3)})


def _dlpack(v: Values) -> _Dlpack:
    array = _plain(v)
    source = array if array.dtype.name in _DTYPES else np.zeros(8, "float32")
    used = source.__dlpack__()
    torch.from_dlpack(_Dlpack((1, 0), lambda: used))  # type: ignore[attr-defined]

    def fail() -> object:
        raise _error(v)

    capsule = v.pick(
        *(source.__dlpack__,) * 4, lambda: used, lambda: v.make("any"), lambda: None, fail
    )
    device = v.pick((1, 0), (1, 0), (1, 0), (2, 0), (1,), "cpu", None, ("1", 0), _error(v))
    return _Dlpack(device, capsule)


_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)
_ANY: tuple[Any, ...] = (
    None,
    ...,
    "",
    "a text",
    "\ud800",
    b"bytes",
    b"\0" * 128,
    0.5,
    1j,
    (),
    _CYCLE,
    object(),
    type,
    int,
    len,
    NotImplemented,
    range(3),
    frozenset((1,)),
    0,
    -1,
    2**64,
    True,
    torch.float32,
    np.dtype("f4"),
    memoryview(b"abcd"),
    np.float64(5),
    _Index("1"),
    _Given(),
    _Given(dtype=ValueError("no dtype")),
    _Given(__cuda_stream__=lambda: (0,)),
    _Given(__cuda_stream__=lambda: (0, 0)),
    _Given(name=3),
    _Given(ptr="1"),
)


def _any(v: Values) -> Any:  # noqa: ANN401
    return v.pick(*_ANY, [], {}, bytearray(8))


def makers(nccl: ModuleType, raw: ModuleType, comm: Any) -> dict[str, Maker]:  # noqa: ANN401
    """The generators of all kinds of values.

    Args:
        nccl: pynccl.nccl.
        raw: pynccl.raw.
        comm: a communicator over the no-op library.
    """
    library = comm.library.path
    buffers = [comm.mem_alloc(8, "float32"), comm.mem_alloc((2, 4), "int8")]
    closed = comm.mem_alloc(8, "float32")
    closed.close()
    streams = [nccl.Stream(library), nccl.Stream(library)]
    streams[1].close()
    scaled = comm.pre_mul_sum(2.0, "float32")
    dead = comm.pre_mul_sum(2.0, "float32")
    dead.close()
    ops = [getattr(nccl.RedOp, name) for name in ("SUM", "PROD", "MAX", "AVG")]
    structs = [raw.ncclConfig_t(), raw.ncclSimInfo_t()]
    unique_id = nccl.get_unique_id(library)
    names = [*_DTYPES, "bfloat16", "int16", "", "torch.float32", np.float32, torch.float32]
    names += [np.dtype("f8"), raw.ncclFloat32, raw.ncclDataType_t]
    array = (_numpy,) * 4 + (_tensor,) * 5 + (_interface,) * 4 + (_dlpack,) * 2

    def make_array(v: Values) -> Any:  # noqa: ANN401
        if v.rng.random() < 0.1:
            return v.pick(*buffers, closed, 4096, v.make("any"))
        return v.pick(*array)(v)

    def small(v: Values) -> Any:  # noqa: ANN401
        """For pynccl.raw, which allocates memory by a count: no large count that could succeed."""
        made = v.make("integer")
        return made if not isinstance(made, int) or not 10**6 < made < 2**64 else 3

    with_any: dict[str, Maker] = {
        "array": make_array,
        "arrays": lambda v: [make_array(v) for _ in range(v.pick(0, 1, 8, 8))],
        "op": lambda v: v.pick(None, None, *ops, scaled, dead),
        "stream": lambda v: v.pick(None, *streams, 0, v.make("integer"), v.make("any")),
        "dtype": lambda v: v.pick(None, *names),
        "config": lambda v: v.pick(None, nccl.CollConfig(), nccl.Config()),
        "flag": lambda v: v.pick(True, False, True, 1),
        "shape": lambda v: v.pick(8, (2, 4), v.make("integers"), -1, (2**62, 2**62), "8"),
    }
    return {
        **with_any,
        "any": _any,
        "integer": _integer,
        "integers": _sequence("integer"),
        "raw": lambda v: v.pick(
            *(small,) * 6,
            lambda _: comm.handle,
            lambda v: _items(v, "integer"),
            lambda v: v.pick(*structs, unique_id, None),
            _any,
        )(v),
    }
