"""Proves that an array of any kind gives the right values or an error that names the argument: lazy
tensors, tensors without storage, scalars and masked arrays of NumPy, and objects that misdescribe
their memory. The owner of the memory is referenced until the operation is done.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support.commands import python_output
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


def _lazy() -> dict[str, tuple[Any, str]]:
    """Tensors whose memory holds other values, and the text of the error."""
    import torch

    z = torch.tensor([1 + 2j, 3 - 4j])
    return {
        "conjugated": (z.conj(), "is lazily conjugated"),
        "negated": (torch.ones(4)._neg_view(), "is lazily negated"),
        "negated integers": (torch.ones(4, dtype=torch.int64)._neg_view(), "is lazily negated"),
        "imaginary part": (z[:1].conj().imag, "is lazily negated"),
        "of no elements": (z[:0].conj(), "is lazily conjugated"),
        "parameter": (torch.nn.Parameter(z).conj().detach(), "is lazily conjugated"),
    }


def _without_memory() -> dict[str, Any]:
    """Tensors whose values are not in storage of their own."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    plain = torch.ones(4)
    seen: dict[str, Any] = {}

    def see(name: str) -> Callable[[Any], Any]:
        def function(tensor: Any) -> Any:  # noqa: ANN401
            seen[name] = tensor
            return tensor.sum()

        return function

    class Dispatched(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_: object) -> None:
            raise AssertionError("an operation ran")

    torch.vmap(see("vmap"))(torch.ones(3, 4))
    torch.func.grad(see("grad"))(torch.ones(4))
    torch.func.functionalize(see("functionalize"))(torch.ones(4))
    return {
        **seen,
        "fake": FakeTensorMode().from_tensor(plain),
        "meta": torch.ones(4, device="meta"),
        "zeros": torch._efficientzerotensor(4),
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(plain, 0.1, 0, torch.quint8),
        "nested": torch.nested.nested_tensor([plain, plain]),
        "two tensors": TwoTensor(plain, plain),
        "__torch_dispatch__": torch.Tensor._make_subclass(Dispatched, plain),
    }


@pytest.mark.filterwarnings("ignore")
def test_lazy_tensors_are_refused(comm: nccl.Communicator) -> None:
    import torch

    for name, (tensor, text) in _lazy().items():
        plain = torch.zeros(tensor.shape, dtype=tensor.dtype)
        for argument, call in _calls(comm, tensor, plain).items():
            with pytest.raises(ValueError, match=f"^{argument.partition(',')[0]}: {text}"):
                call()
            comm.all_reduce(plain)  # the last type of tensor is the same, the tensor is not
        resolved = tensor.resolve_conj().resolve_neg()
        before = resolved.clone()
        comm.all_reduce(resolved)
        assert torch.equal(resolved, before), name


def _calls(comm: nccl.Communicator, tensor: Any, plain: Any) -> dict[str, Callable[[], object]]:  # noqa: ANN401
    """Calls that read or write a tensor, by the name of the argument."""

    def grouped() -> None:
        with nccl.group():
            comm.all_reduce(plain)
            comm.send(tensor, 0)

    def planned() -> None:
        with nccl.plan():
            comm.broadcast(tensor, 0)

    return {
        "tensor": lambda: comm.all_reduce(tensor),
        "tensor, sent": lambda: comm.send(tensor, 0),
        "tensor, with out": lambda: comm.all_gather(tensor, out=plain),
        "out": lambda: comm.all_gather(plain, out=tensor),
        "tensor, in a group": grouped,
        "tensor, in a plan": planned,
        "buffer": lambda: comm.register(tensor),
    }


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_memory_are_refused(comm: nccl.Communicator) -> None:
    import torch

    plain = torch.ones(4)
    for name, tensor in _without_memory().items():
        with pytest.raises(ValueError, match=r"^tensor: ") as raised:
            comm.all_reduce(tensor)
        assert "\n" not in str(raised.value), name
        with pytest.raises(ValueError, match=r"^out: "):
            comm.all_reduce(plain, out=tensor)


def test_scalars_and_masked_arrays_are_refused(comm: nccl.Communicator) -> None:
    ones = np.ones(1)
    for scalar in (np.float64(5), np.mean(np.ones(3)), np.int32(1), np.bool_(True), ones[0]):
        with pytest.raises(
            TypeError, match=r"^tensor: expected an array; a NumPy scalar is a copy"
        ):
            comm.all_reduce(scalar)
        with pytest.raises(TypeError, match=r"^out: expected an array; a NumPy scalar is a copy"):
            comm.all_reduce(ones, out=scalar)
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    with pytest.raises(TypeError, match=r"^tensor: expected an array without a mask"):
        comm.all_reduce(masked)
    comm.all_reduce(masked.data)


def test_arrays_of_numpy_are_read_without_calls(comm: nccl.Communicator) -> None:
    """From their memory, without any protocol."""

    class Silent(np.ndarray):
        def __dlpack__(self, **_: object) -> None:  # type: ignore[override]
            raise AssertionError("a protocol was used")

        __dlpack_device__ = __dlpack__  # type: ignore[assignment]
        __array_interface__ = __cuda_array_interface__ = property(__dlpack__)

    out = np.zeros(4)
    comm.all_reduce(np.arange(4.0).view(Silent), out=out)
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"^tensor: must be contiguous"):
        comm.all_reduce(np.zeros((3, 4)).view(Silent)[:, 1])


_OF_ANOTHER_NUMPY = """
import numpy as np
np.__version__ = "3.0.0"  # whose structures are not known
from pynccl import nccl

class Array(np.ndarray):
    @property
    def __array_interface__(self):
        print("read")
        return np.asarray(self).__array_interface__

with nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host") as comm:
    out = np.zeros(3)
    comm.all_reduce(np.arange(3.0).view(Array), out=out)
    print(out)
"""


def test_arrays_of_another_numpy_are_read_by_their_interface() -> None:
    assert python_output(_OF_ANOTHER_NUMPY) == "read\n[0. 1. 2.]"


class _Interface:
    """An object with one array interface, of two float32 values, with the given changes."""

    def __init__(self, name: str = "__array_interface__", **changes: object) -> None:
        self.memory = np.zeros(64, np.uint8)
        interface = {
            "version": 3,
            "shape": (2,),
            "typestr": "<f4",
            "data": (self.memory.ctypes.data, False),
            **changes,
        }
        given = {key: value for key, value in interface.items() if value is not ...}
        setattr(self, name, given)


class _CupyArray:
    """The attributes that are read of CuPy's arrays. It has no protocol."""

    _c_contiguous = True

    def __init__(self) -> None:
        self.dtype, self.size = np.dtype("float32"), 6
        self.shape, self.strides = (2, 3), (4, 8)
        self.data = SimpleNamespace(ptr=4096, device_id=5)


@on_ranks(1, by="provider")
def test_arrays_of_cupy(rank: Rank) -> None:
    stream, own = rank.stream(), "cpu" if rank.device is None else f"cuda:{rank.device}"
    module = ModuleType("cupy")
    module.ndarray = _CupyArray  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", module)
        array = _CupyArray()
        with pytest.raises(
            ValueError, match=f"^tensor: is on cuda:5, the communicator is on {own}"
        ):
            rank.comm.all_reduce(array, stream=stream)
        array._c_contiguous = False
        text = r"^tensor: must be contiguous, has shape \(2, 3\) and strides of \(4, 8\) bytes"
        with pytest.raises(ValueError, match=text):
            rank.comm.all_reduce(array, stream=stream)
        # Another library's class may have the same attribute.
        other = type("Other", (_Interface,), {"_c_contiguous": False})
        if rank.device is None:
            rank.comm.all_reduce(other())
        else:
            with pytest.raises(ValueError, match=f"^tensor: is on cpu, .* is on {own}"):
                rank.comm.all_reduce(other(), stream=stream)


class _Index:
    """An integer that calls a function when it is converted."""

    def __init__(self, value: int, then: Callable[[], object]) -> None:
        self._value, self._then = value, then

    def __index__(self) -> int:
        self._then()
        return self._value


def _emptied() -> list[Any]:
    items: list[Any] = []
    items += [_Index(2, items.clear), _Index(3, items.clear), 1]
    return items


_MALFORMED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no shape": ({"shape": ...}, ValueError, "has no shape"),
    "no typestr": ({"typestr": ...}, ValueError, "has no typestr"),
    "no data": ({"data": ...}, ValueError, "has no data"),
    "negative": ({"shape": (2, -3)}, ValueError, "-3, which is negative"),
    "negative, strided": ({"shape": (-2,), "strides": (8,)}, ValueError, "-2, which is negative"),
    "too large": ({"shape": (2**40, 2**40)}, ValueError, "does not fit"),
    "too large, empty": ({"shape": (2**62, 2**62, 0)}, ValueError, "does not fit"),
    "after the end": ({"data": (2**64 - 4, False)}, ValueError, "ends after the last address"),
    "few strides": ({"shape": (2, 2), "strides": (8,)}, ValueError, "2 dimensions, strides has 1"),
    "many strides": ({"strides": (8, 4)}, ValueError, "1 dimensions, strides has 2"),
    "short strides": ({"strides": (2,)}, ValueError, "must be contiguous"),
    "negative strides": ({"strides": (-4,)}, ValueError, "must be contiguous"),
    "no strides": ({"strides": ()}, ValueError, "1 dimensions, strides has 0"),
    "shape of text": ({"shape": "22"}, TypeError, "a tuple of integers"),
    "shape of floats": ({"shape": (2.0,)}, TypeError, "an integer"),
    "huge shape": ({"shape": (2**70,)}, ValueError, "does not fit"),
    "f36": ({"typestr": "<f36"}, ValueError, "<f36 is not a dtype"),
    "f4x": ({"typestr": "<f4x"}, ValueError, "is not a dtype"),
    "f": ({"typestr": "f4"}, ValueError, "f4 is not a dtype"),
    "swapped": ({"typestr": ">f4"}, ValueError, ">f4 is not a dtype"),
    "long typestr": ({"typestr": "<f" + "4" * 40}, ValueError, "is not a dtype"),
    "typestr of bytes": ({"typestr": b"<f4"}, TypeError, "a str"),
    "surrogate": ({"typestr": "<f\ud800"}, ValueError, "is not a dtype"),
    "address alone": ({"data": 4096}, TypeError, "an address and a bool"),
    "negative address": ({"data": (-1, False)}, ValueError, "does not fit"),
    "address 0": ({"data": (0, False)}, ValueError, "no storage"),
    "data of one": ({"data": (4096,)}, TypeError, "an address and a bool"),
    "buffer": ({"data": b"12345678"}, TypeError, "an address and a bool"),
    "mask": ({"mask": np.ones(2, bool)}, ValueError, "has a mask"),
    "read-only": ({"data": (4096, True)}, ValueError, "is read-only"),
}


@pytest.mark.parametrize("case", _MALFORMED)
def test_malformed_interfaces(comm: nccl.Communicator, case: str) -> None:
    changes, error, text = _MALFORMED[case]
    with pytest.raises(error, match=f"^tensor: .*{text}"):
        comm.all_reduce(_Interface(**changes))
    if case != "read-only":  # whose other array is in the wrong memory
        with pytest.raises(error, match=f"^tensor: .*{text}"):
            comm.all_reduce(_Interface("__cuda_array_interface__", **changes))


def test_sequences_that_change_while_they_are_read(comm: nccl.Communicator) -> None:
    comm.all_reduce(_Interface(shape=[2]))
    comm.all_reduce(_Interface(shape=_emptied(), typestr="<i1"))
    with pytest.raises(TypeError, match="__array_interface__: expected a dict"):
        comm.all_reduce(type("Wrong", (), {"__array_interface__": 3})())
    library = raw.load("host")
    items: list[Any] = []
    items += [_Index(0, items.clear)] * 50
    (handle,) = library.ncclCommInitAll(1, items)
    library.ncclCommDestroy(handle)


class _Copy:
    """Exports a new copy of its values at each call, which only the capsule references."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.given: list[weakref.ref[np.ndarray]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, stream: object = None) -> object:
        copy = self._values.copy()
        self.given.append(weakref.ref(copy))
        return copy.__dlpack__()

    def alive(self) -> bool:
        return self.given[-1]() is not None


def test_owners_live_until_the_operation_is_done(comm: nccl.Communicator) -> None:
    values, out = np.arange(4.0), np.zeros(4)
    source = _Copy(values)
    comm.all_reduce(source, out=out)
    assert not source.alive()
    np.testing.assert_array_equal(out, values)
    with nccl.group():
        out[:] = 0
        comm.all_reduce(source, out=out)
        assert source.alive()
    np.testing.assert_array_equal(out, values)
    assert not source.alive()
    with nccl.plan() as plan:
        comm.all_reduce(source, out=out)
    for _ in range(2):
        out[:] = 0
        plan()
        np.testing.assert_array_equal(out, values)
        assert source.alive()
    plan.close()
    assert not source.alive()
    op = comm.pre_mul_sum(_Copy(np.array([2.0])), "float64")
    comm.all_reduce(values, op, out=out)
    np.testing.assert_array_equal(out, 2 * values)


def test_owners_live_as_long_as_the_graph(comm: nccl.Communicator) -> None:
    values, out = np.arange(4.0), np.zeros(4)
    source = _Copy(values)
    stream = nccl.Stream("host")
    with nccl.capture(stream) as graph:
        comm.all_reduce(source, out=out, stream=stream)
    assert source.alive()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(out, values)
    graph.close()


def test_owners_live_until_the_stream_has_run_the_operation(comm: nccl.Communicator) -> None:
    values, out = np.arange(4.0), np.zeros(4)
    stream, begin = nccl.Stream("host"), threading.Event()
    for grouped in (False, True):
        source = _Copy(values)
        begin.clear()
        out[:] = 0
        stream.launch(begin.wait)
        with nccl.group() if grouped else contextlib.nullcontext():
            comm.all_reduce(source, out=out, stream=stream)
        held = source.alive()
        begin.set()
        stream.synchronize()
        assert held
        np.testing.assert_array_equal(out, values)
        # The next operation with a capsule releases those that are done.
        comm.all_reduce(_Copy(values), out=out, stream=stream)
        stream.synchronize()
        assert not source.alive()


def test_wrong_streams(comm: nccl.Communicator) -> None:
    class Wrong:
        def __init__(self, answer: object) -> None:
            self._answer = answer

        def __cuda_stream__(self) -> object:
            return self._answer

    for answer in ((0,), 0, None, (0, "1"), [0, 0]):
        with pytest.raises(TypeError, match=r"^stream"):
            comm.all_reduce(np.zeros(1), stream=Wrong(answer))
    with pytest.raises(ValueError, match=r"^stream"):
        comm.all_reduce(np.zeros(1), stream=Wrong((0, -1)))
