"""Proves that every wrong argument of every method raises a TypeError or ValueError that names the
argument and the value before anything is sent, and leaves the communicator usable. An array of any
kind gives the right values or such an error: lazy tensors, tensors without storage, scalars and
masked arrays of NumPy, and objects that misdescribe their memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import gpu
from tests.support.commands import python_output
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_OTHERS = ("broadcast", "reduce", "gather", "scatter", "send", "recv")
_PEER = {"send": "peer", "recv": "peer"}
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_METHODS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", *_OTHERS)
_WITH_OUT = tuple(name for name in _METHODS if name not in _PEER)


class _Calls:
    """Calls of a communicator that must be refused."""

    def __init__(self, comm: nccl.Communicator) -> None:
        self.comm = comm

    def refuse(
        self, error: type[Exception], text: str, method: str, *args: object, **keywords: object
    ) -> None:
        """Call the method, with its rank argument and its out if it requires them."""
        if method in _OTHERS and not {"root", "peer"} & keywords.keys():
            keywords[_PEER.get(method, "root")] = self.comm.rank
        if method == "all_to_all":
            keywords.setdefault("out", np.zeros(8, np.float32))
        call = f"{method}{args} {keywords}"
        try:
            getattr(self.comm, method)(*args, **keywords)
        except error as caught:
            message = str(caught)
        else:
            raise AssertionError(f"{call} was not refused")
        assert text in message, f"{call}: {message}"


@on_ranks(2, timeout=30)
def test_wrong_tensors(rank: Rank) -> None:
    import torch

    calls, good = _Calls(rank.comm), np.zeros(8, np.float32)
    two = np.zeros((4, 4), np.float32)
    for method in _METHODS:
        wrong = [
            (TypeError, "got None", None),
            (TypeError, "got 'text' (str)", "text"),
            (TypeError, "got [1.0, 2.0] (list)", [1.0, 2.0]),
            (TypeError, "an integer address needs count= and dtype=", good.ctypes.data),
            (ValueError, "must be contiguous, has shape (4, 4) and strides (1, 4)", two.T),
            (ValueError, "must be contiguous", good[::2]),
            (ValueError, "must be contiguous", good[::-1]),
            (ValueError, "is not a dtype of NCCL", np.zeros(8, np.int16)),
            (ValueError, "is not a dtype of NCCL", np.zeros(8, np.longdouble)),
            (ValueError, "is not a dtype of NCCL", np.zeros(8, "datetime64[s]")),
            (ValueError, "is not a dtype of NCCL", np.zeros(8, ">f4")),
            (ValueError, "is not a dtype of NCCL", np.zeros(8, "U4")),
            (ValueError, "is not a dtype of NCCL", np.zeros(8, [("x", "f4")])),
            (ValueError, "tensor: ", torch.zeros(8, device="meta")),
            (ValueError, "tensor: ", torch.eye(4).to_sparse()),
            (ValueError, "must be contiguous", torch.zeros(4, 4).T),
            (ValueError, "torch.int16 is not a dtype of", torch.zeros(8, dtype=torch.int16)),
        ]
        for error, text, value in wrong:
            calls.refuse(error, "tensor: ", method, value)
            calls.refuse(error, text, method, value)
        calls.refuse(TypeError, "missing required argument 'tensor'", method)
        calls.refuse(TypeError, "unexpected keyword argument 'tensro'", method, good, tensro=good)
        calls.refuse(TypeError, "multiple values for argument 'tensor'", method, good, tensor=good)
        calls.refuse(TypeError, "positional argument", method, *[good] * 9)
        with pytest.raises(TypeError, match="missing required argument 'tensor'"):
            getattr(rank.comm, method)()
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    for method in set(_METHODS) - {"all_to_all", "send"}:
        calls.refuse(ValueError, "tensor: is read-only", method, read_only)
    rank.comm.all_reduce(good)


@on_ranks(2, timeout=30)
def test_wrong_outputs(rank: Rank) -> None:
    calls, good = _Calls(rank.comm), np.zeros(8, np.float32)
    sizes = {"all_gather": 16, "gather": 16, "reduce_scatter": 4, "scatter": 4}
    for method in _WITH_OUT:
        size = sizes.get(method, 8)
        calls.refuse(TypeError, "out: expected a tensor", method, good, out="x")
        text, wrong = "out: is float64, tensor is float32", np.zeros(size, np.float64)
        calls.refuse(ValueError, text, method, good, out=wrong)
        for count in (size - 1, size + 1, 0):
            calls.refuse(ValueError, "must have", method, good, out=np.zeros(count, np.float32))
        read_only = np.zeros(size, np.float32)
        read_only.flags.writeable = False
        calls.refuse(ValueError, "out: is read-only", method, good, out=read_only)
        strided = np.zeros(2 * size, np.float32)[::2]
        calls.refuse(ValueError, "out: must be contiguous", method, good, out=strided)
        calls.refuse(TypeError, "positional arguments", method, good, None, None, good)
    whole = np.zeros(24, np.float32)
    for method in ("all_reduce", "broadcast", "reduce"):
        calls.refuse(ValueError, "out: overlaps", method, whole[:8], out=whole[1:9])
    calls.refuse(ValueError, "out: overlaps", "all_gather", whole[3:11], out=whole[:16])
    calls.refuse(ValueError, "out: overlaps", "reduce_scatter", whole[:8], out=whole[6:10])
    calls.refuse(ValueError, "no all-to-all in place", "all_to_all", good, out=good)
    calls.refuse(ValueError, "out: overlaps", "all_to_all", whole[:8], out=whole[4:12])
    calls.refuse(TypeError, "no all-to-all in place", "all_to_all", good, out=None)
    for method in ("all_gather", "reduce_scatter", "gather", "scatter"):
        text = "tensor: has 7 elements, must be a multiple of the 2 ranks"
        calls.refuse(ValueError, text, method, np.zeros(7, np.float32))
    for method in ("send", "recv"):
        calls.refuse(TypeError, "unexpected keyword argument 'out'", method, good, out=good)
    rank.comm.all_reduce(good)


@on_ranks(2, timeout=30)
def test_wrong_ranks_and_operators(rank: Rank) -> None:
    comm = rank.comm
    calls, good = _Calls(comm), np.zeros(8, np.float32)
    for method in _OTHERS:
        name = _PEER.get(method, "root")
        for value in (-1, 2, 1000):
            text = f"{name}: rank {value} is out of range for a communicator of size 2"
            calls.refuse(ValueError, text, method, good, **{name: value})
        calls.refuse(ValueError, f"{name}: {2**40} does not fit", method, good, **{name: 2**40})
        for wrong, shown in ((None, "None"), (0.0, "0.0"), ("0", "'0'")):
            text = f"{name}: expected an integer, got {shown}"
            calls.refuse(TypeError, text, method, good, **{name: wrong})
        with pytest.raises(TypeError, match=f"missing required argument '{name}'"):
            getattr(comm, method)(good)
    for method in _REDUCING:
        expected = "a RedOp, an operator of torch.distributed.ReduceOp or a str"
        for wrong_op, shown in ((b"sum", "b'sum'"), (0, "0"), (sum, "<built-in function sum>")):
            text = f"op: expected {expected}, got {shown}"
            calls.refuse(TypeError, text, method, good, op=wrong_op)
        for unknown in ("mean", "SUM", "", "sum ", "s\0m"):
            text = f"op: {unknown!r} is not one of 'sum', 'avg', 'max', 'min', 'prod'"
            calls.refuse(ValueError, text, method, good, op=unknown)
        for dtype, op in (("complex64", nccl.PROD), ("complex64", nccl.MAX), ("bool", nccl.AVG)):
            text = f"op: {op.name} is not defined on {dtype}"
            for given in (op, op.name.lower()):
                calls.refuse(ValueError, text, method, np.zeros(8, dtype), op=given)
        calls.refuse(ValueError, "op: SUM is not defined on bool", method, np.zeros(8, bool))
    for method in set(_METHODS) - set(_REDUCING):
        calls.refuse(TypeError, "unexpected keyword argument 'op'", method, good, op=nccl.SUM)
    # A rank may be anything that is an index.
    comm.broadcast(good, np.int64(0))


@on_ranks(2, timeout=30)
def test_wrong_streams_counts_and_dtypes(rank: Rank) -> None:
    comm = rank.comm
    calls, good = _Calls(comm), np.zeros(8, np.float32)
    address = good.ctypes.data
    for method in _METHODS:
        calls.refuse(TypeError, "stream: expected a stream", method, good, stream="x")
        calls.refuse(ValueError, "stream: -1 does not fit", method, good, stream=-1)
        text = "count= and dtype= are only allowed with an integer address"
        calls.refuse(TypeError, text, method, good, count=8)
        calls.refuse(TypeError, text, method, good, dtype="float32")
        out = {"out": address + 64} if method == "all_to_all" else {}
        numbered = {"count": 8, "dtype": "float32", **out}
        for error, text, changes in (
            (ValueError, "count: -1 does not fit", {"count": -1}),
            (ValueError, f"count: {2**64} does not fit", {"count": 2**64}),
            (TypeError, "count: expected an integer, got 8.0", {"count": 8.0}),
            (ValueError, "dtype: 'float33' is not a dtype of NCCL", {"dtype": "float33"}),
        ):
            calls.refuse(error, text, method, address, **{**numbered, **changes})
        calls.refuse(ValueError, "tensor: the address is 0", method, 0, **numbered)
        calls.refuse(ValueError, "tensor: -8 does not fit", method, -8, **numbered)
    with pytest.raises(TypeError, match="stream"):
        comm.barrier(stream="first")
    comm.all_reduce(good)


@on_ranks(2, ids=2, timeout=30)
def test_wrong_own_operators(rank: Rank) -> None:
    comm, other = rank.comm, rank.communicator(1)
    calls, good = _Calls(comm), np.zeros(8, np.float32)
    op = comm.pre_mul_sum(2.0, "float32")
    foreign = other.pre_mul_sum(2.0, "float32")
    closed = comm.pre_mul_sum(2.0, "float32")
    closed.close()
    closed.close()
    for method in _REDUCING:
        text = "op: PRE_MUL_SUM belongs to another communicator"
        calls.refuse(ValueError, text, method, good, op=foreign)
        calls.refuse(ValueError, "op: PRE_MUL_SUM is closed", method, good, op=closed)
        text = "op: PRE_MUL_SUM is for float32, the tensor is float64"
        calls.refuse(ValueError, text, method, np.zeros(8), op=op)
    for error, text, scalar, dtype in (
        (ValueError, "scalar: 300 does not fit between -128 and 127", 300, "int8"),
        (ValueError, "scalar: -1 does not fit", -1, "uint64"),
        (TypeError, "scalar: expected an integer, got 0.5", 0.5, "int32"),
        (TypeError, "scalar", "2", "float32"),
        (TypeError, "scalar", None, "float32"),
        (ValueError, "scalar: must be one element of float32", np.zeros(2, np.float32), "float32"),
        (ValueError, "scalar: must be one element of float32", np.zeros(1, np.float64), "float32"),
        (ValueError, "dtype: 'float33' is not a dtype of NCCL", 2.0, "float33"),
        (ValueError, "dtype: None is not a dtype of NCCL", 2.0, None),
    ):
        with pytest.raises(error, match=text):
            comm.pre_mul_sum(scalar, dtype)
    array = np.full(3, 1.5, np.float32)
    comm.all_reduce(array, op)
    assert (array == 3 * rank.nranks).all()
    # Operators end with their communicator. Closing one afterwards is not an error.
    other.close()
    foreign.close()
    op.close()
    nccl.SUM.close()


def test_wrong_memory(comm: nccl.Communicator) -> None:
    for error, text, call in (
        (TypeError, "buffer: expected a tensor", lambda: comm.register("x")),
        (ValueError, "buffer: must be contiguous", lambda: comm.register(np.zeros(8)[::2])),
        (ValueError, "dtype: 'float33'", lambda: comm.mem_alloc(3, "float33")),
        (TypeError, "shape: .*'x'", lambda: comm.mem_alloc("x")),
        (TypeError, "shape: .*2.5", lambda: comm.mem_alloc((2, 2.5))),
        (TypeError, "shape: .*None", lambda: comm.mem_alloc(None)),
    ):
        with pytest.raises(error, match=text):
            call()
    buffer = comm.mem_alloc(8, "float32")
    with pytest.raises(BufferError, match="a Buffer cannot be exported as a copy"):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"dl_device: .* got \(2, 0\)"):
        buffer.__dlpack__(dl_device=(2, 0))
    assert "dltensor" in repr(buffer.__dlpack__(dl_device=(1, 0)))
    assert '"dltensor"' in repr(buffer.__dlpack__(copy=False))
    for version, name in ((None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned")):
        assert f'"{name}"' in repr(buffer.__dlpack__(max_version=version))
    with pytest.raises(ValueError, match="count: 2 elements end after the last address"):
        comm.all_reduce(2**64 - 8, count=2, dtype="float64")
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        comm.all_reduce(buffer)


_ID = bytes(128)  # never parsed


@pytest.mark.parametrize(
    ("error", "text", "args", "keywords"),
    [
        (ValueError, "nranks: 0 is below 1", (0, _ID, 0), {}),
        (ValueError, "nranks: -3 is below 1", (-3, _ID, 0), {}),
        (TypeError, "nranks: expected an integer, got '2'", ("2", _ID, 0), {}),
        (ValueError, "rank: rank 2 is out of range for a communicator of size 2", (2, _ID, 2), {}),
        (ValueError, "rank -1 is out of range", (2, _ID, -1), {}),
        (TypeError, "rank: expected an integer, got None", (2, _ID, None), {}),
        (TypeError, "unique_id: expected a UniqueId or 128 bytes, got 'x'", (2, "x", 0), {}),
        (ValueError, "unique_id: has 3 bytes, a UniqueId has 128", (2, b"abc", 0), {}),
        (TypeError, "config: expected a Config or None", (1, _ID, 0), {"config": {}}),
        (ValueError, "provider: 'gpu' is neither", (1, _ID, 0), {"provider": "gpu"}),
        (ValueError, "device: 'tpu' is neither", (1, _ID, 0), {"device": "tpu"}),
        (ValueError, "device: -1 is negative", (1, _ID, 0), {"device": -1}),
        (ValueError, "device: 3 does not exist", (1, _ID, 0), {"device": 3}),
        (ValueError, f"device: {2**40} is above", (1, _ID, 0), {"device": 2**40}),
        (ValueError, "has no number after the colon", (1, _ID, 0), {"device": "cuda:x"}),
        (TypeError, "device: expected an integer", (1, _ID, 0), {"device": 1.5}),
        (ValueError, "does not belong to provider", (1, _ID, 0), {"device": "cuda:0"}),
        (TypeError, "colour", (1, _ID, 0), {"colour": 1}),
        (TypeError, "", (1, _ID), {}),
        (TypeError, "", (1, _ID, 0, None), {}),
    ],
)
def test_wrong_arguments_of_a_communicator(
    error: type[Exception], text: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    with pytest.raises(error) as caught:
        nccl.Communicator(*args, **{"provider": "host", **keywords})
    assert text in str(caught.value)


def test_wrong_arguments_of_init_all() -> None:
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "devices: 0 is below 1", 0),
        (ValueError, "devices: 1000000000 is above 65536", 10**9),  # before a list is built
        (ValueError, "devices: the sequence is empty", []),
        (ValueError, "does not belong to provider", ["cpu", "cuda:0"]),
        (ValueError, "device: 'tpu' is neither", ["tpu"]),
        (TypeError, "device", [0.5]),
    ]
    for error, text, devices in wrong:
        with pytest.raises(error, match=text):
            nccl.Communicator.init_all(devices, provider="host")


def test_wrong_arguments_of_streams_and_events() -> None:
    for make in (nccl.Stream, nccl.Event):
        with pytest.raises(ValueError, match="provider: 'gpu'"):
            make("gpu")
        with pytest.raises(ValueError, match="device: -1 is negative"):
            make("host", device=-1)
        with pytest.raises(TypeError):
            make("host", 0)
    stream, event = nccl.Stream("host"), nccl.Event("host")
    with pytest.raises(TypeError):
        stream.wait(None)
    with pytest.raises(TypeError, match="stream"):
        event.record("x")
    with pytest.raises(TypeError):
        event.elapsed_time(stream)
    with pytest.raises(ValueError, match=r"mode: expected 'global', .* or 'relaxed', got 'local'"):
        nccl.capture(stream, mode="local")


def test_strides_of_an_exported_buffer(comm: nccl.Communicator) -> None:
    """Since DLPack 1.2 a consumer may read them without a check."""

    class Tensor(ctypes.Structure):
        _fields_ = (
            ("header", ctypes.c_uint64 * 4),  # of a DLManagedTensorVersioned
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint32),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
        )

    capsule = comm.mem_alloc((2, 3, 4), "float32").__dlpack__(max_version=(1, 3))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = Tensor.from_address(pointer(capsule, b"dltensor_versioned"))
    assert tensor.shape[: tensor.ndim] == [2, 3, 4]
    assert tensor.strides[: tensor.ndim] == [12, 4, 1]


def test_wrong_time_limits(comm: nccl.Communicator) -> None:
    for error, text, call in (
        (TypeError, "^timeout: .*got '5'", lambda: setattr(comm, "timeout", "5")),
        (ValueError, "^timeout: 0 must be above", lambda: setattr(comm, "timeout", 0)),
        (TypeError, "^seconds: .*got None", lambda: nccl.deadline(None)),  # type: ignore[arg-type]
        (ValueError, "^seconds: -1.5 must be above", lambda: nccl.deadline(-1.5)),
    ):
        with pytest.raises(error, match=text):
            call()


class _Unreadable(Fraction):
    """A number whose conversion raises."""

    error: BaseException

    def __float__(self) -> float:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("no number")])
def test_errors_of_a_conversion_are_raised(comm: nccl.Communicator, error: BaseException) -> None:
    number: Any = _Unreadable(1)
    number.error = error
    for call in (
        lambda: setattr(comm, "timeout", number),
        lambda: nccl.deadline(number),
        lambda: nccl.Config(init_timeout=number),
        lambda: comm.pre_mul_sum(number, "float64"),
    ):
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error


def test_a_number_that_no_double_holds(comm: nccl.Communicator) -> None:
    with pytest.raises(TypeError, match=r"timeout: expected .*, got 1000"):
        comm.timeout = 10**400
    with pytest.raises(TypeError, match=r"scalar: expected .*, got 1000"):
        comm.pre_mul_sum(10**400, "float64")


def test_wrong_ranks_to_exclude(comm: nccl.Communicator) -> None:
    with pytest.raises(TypeError, match="exclude: expected an integer, got 'x'"):
        comm.recover(exclude=["x"])  # type: ignore[list-item]


def test_the_text_of_a_long_value_is_cut(comm: nccl.Communicator) -> None:
    with pytest.raises(TypeError, match=r"got \['ä', .*\.\.\. \(list\)$") as caught:
        comm.all_reduce(["ä"] * 10**6)
    assert len(str(caught.value)) < 300


def test_an_object_without_init() -> None:
    bare = nccl.Communicator.__new__(nccl.Communicator)
    with pytest.raises(ValueError, match="the object is not initialised"):
        bare.all_reduce(np.ones(1))


@pytest.mark.gpu
@on_ranks(1, provider="cuda")
def test_a_stream_is_required_without_a_framework(rank: Rank) -> None:
    array = rank.memory.put(np.ones(4, np.float32))
    address = array.data_ptr()
    with pytest.raises(TypeError, match=r"stream: is required, since tensor \(int\) has no"):
        rank.comm.all_reduce(address, count=4, dtype="float32")
    gpu.require(rank.provider, "ncclSignal")
    with pytest.raises(TypeError, match=r"stream: signal\(\) has no tensor to determine"):
        rank.comm.signal(0)


class _Stranger:
    """Claims to have memory on a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return np.zeros(3).__dlpack__()

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (3,),
        "typestr": "<f4",
        "data": (4096, False),
        "version": 3,
    }


def test_memory_of_another_device_is_refused(comm: nccl.Communicator) -> None:
    with pytest.raises(ValueError, match=r"tensor: is on cuda:.*, the communicator is on cpu"):
        comm.all_reduce(_Stranger())
    with pytest.raises(ValueError, match=r"out: is on cuda:"):
        comm.all_reduce(np.zeros(3, np.float32), out=_Stranger())
    with pytest.raises(ValueError, match=r"buffer: is on cuda:"):
        comm.register(_Stranger())
    window = comm.register_window(comm.mem_alloc(4096))
    with pytest.raises(ValueError, match=r"tensor: is on cuda:"):
        comm.put_signal(_Stranger(), 0, window)
    comm.all_reduce(np.zeros(3))


class _Rude:
    """Raises instead of exporting its memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, stream: int | None = None) -> object:
        raise BufferError("not today")


def test_error_of_an_exporter_is_raised(comm: nccl.Communicator) -> None:
    with pytest.raises((BufferError, ValueError), match="not today"):
        comm.all_reduce(_Rude())
    comm.all_reduce(np.zeros(3))


# Arrays


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
        text = "expected an array; a NumPy scalar is a copy"
        with pytest.raises(TypeError, match=f"^tensor: {text}"):
            comm.all_reduce(scalar)
        with pytest.raises(TypeError, match=f"^out: {text}"):
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
        text = f"^tensor: is on cuda:5, the communicator is on {own}"
        with pytest.raises(ValueError, match=text):
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
    counts: dict[int, Any] = {}
    counts |= {0: _Index(1, counts.clear), 1: 1}
    with pytest.raises(ValueError, match="peers: rank 1 is out of range"):
        comm.wait_signal(counts)
    library = raw.load("host")
    items: list[Any] = []
    items += [_Index(0, items.clear)] * 50
    (handle,) = library.ncclCommInitAll(1, items)
    library.ncclCommDestroy(handle)


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
