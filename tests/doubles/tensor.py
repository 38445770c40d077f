"""A stand-in for torch's CUDA tensors: a subclass of torch.Tensor on the double's device memory.

An operation immediately returns a tensor of the right shape. Its work is a kernel ordered on the
current stream, as on a GPU. Views are created immediately. Operations whose result the caller needs
(item(), a copy to the host, value-dependent shapes) wait for the stream.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.doubles import library

__all__ = ["CudaTensor", "adopt", "ordinal_of", "to_device"]

_aten = torch.ops.aten
plain_from_dlpack = torch.utils.dlpack.from_dlpack
_NO_DISPATCH = torch._C._DisableTorchDispatch


@functools.cache
def native() -> ctypes.PyDLL:
    """libtensor.so: memory, current streams and the DLPack exchange API."""
    library.driver()
    loaded = ctypes.PyDLL(str(library.folder() / "libtensor.so"))
    loaded.cuda_double_exchange_api.argtypes = [ctypes.py_object]
    loaded.cuda_double_exchange_api.restype = ctypes.py_object
    loaded.cuda_double_storage.argtypes = [ctypes.c_int, ctypes.c_size_t]
    loaded.cuda_double_storage.restype = ctypes.py_object
    loaded.cuda_double_show_as_cpu.argtypes = [ctypes.py_object]
    loaded.cuda_double_show_as_cuda.argtypes = [ctypes.py_object, ctypes.c_int]
    loaded.cuda_double_set_current_stream.argtypes = [ctypes.c_int, ctypes.c_uint64]
    loaded.cuda_double_set_current_stream.restype = None
    loaded.cuda_double_current_stream.argtypes = [ctypes.c_int]
    loaded.cuda_double_current_stream.restype = ctypes.c_uint64
    return loaded


def ordinal_of(device: torch.device | int | str | None) -> int:
    """The number of a CUDA device, by default of the current one."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def synchronize(ordinal: int) -> None:
    """Wait for the device's current stream."""
    with torch.cuda.device(ordinal):
        library.driver()("cuStreamSynchronize", native().cuda_double_current_stream(ordinal))


class CudaTensor(torch.Tensor):
    """A tensor whose memory belongs to a device of the double.

    torch's C++ code sees a CPU tensor. This class defines its device and when its operations run.
    """

    _ordinal: int

    # Methods call torch's C++ code directly, which calls __torch_dispatch__.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        return _dispatch(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._ordinal)

    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return self._ordinal

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        with _NO_DISPATCH():
            strides = tuple(s * self.element_size() for s in self.stride())
        kind = _blank(self.dtype).numpy().dtype.str
        return {
            "version": 2,
            "shape": tuple(self.shape),
            "typestr": kind,
            "data": (self.data_ptr() if self.numel() else 0, False),
            "strides": None if self.is_contiguous() else strides,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> Any:  # noqa: ANN401
        if stream not in (None, -1):  # order the consumer's stream after the current one
            torch.cuda.ExternalStream(stream, self.device).wait_stream(
                torch.cuda.current_stream(self.device)
            )
        with _NO_DISPATCH():
            capsule = torch._C._to_dlpack(self.detach())
        native().cuda_double_show_as_cuda(capsule, self._ordinal)
        return capsule

    def cpu(self, *_: object, **__: object) -> torch.Tensor:
        synchronize(self._ordinal)
        return _raw(self).clone()

    def cuda(self, device: Any = None, *_: object, **__: object) -> torch.Tensor:  # noqa: ANN401
        return to_device(self, ordinal_of(device))

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        device, dtype, copy, rest = _parse_to(args, kwargs)
        tensor: torch.Tensor = self
        if device is not None and device.type == "cpu":
            return self.cpu().to(*rest, dtype=dtype or self.dtype)
        if device is not None and ordinal_of(device) != self._ordinal:
            tensor = to_device(self, ordinal_of(device))
        if dtype is not None and dtype != tensor.dtype:
            return _aten._to_copy.default(tensor, dtype=dtype)
        return tensor.clone() if copy and tensor is self else tensor

    def numpy(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )

    def __array__(self, *_: object) -> Any:  # noqa: ANN401
        return self.numpy()

    def tolist(self) -> Any:  # noqa: ANN401
        return self.cpu().tolist()

    def __repr__(self, **_: object) -> str:
        text = repr(self.cpu())
        return f"{text[:-1]}, device='{self.device}')"

    def __reduce_ex__(self, _: object) -> Any:  # noqa: ANN401
        return _rebuild, (self.cpu(), self._ordinal)

    def __deepcopy__(self, _: object) -> torch.Tensor:
        return self.clone()

    def record_stream(self, stream: Any) -> None:  # noqa: ANN401
        base = self.untyped_storage().data_ptr()
        library.driver().library.cuda_double_record_stream(self._ordinal, base, stream.cuda_stream)


def _rebuild(cpu: torch.Tensor, ordinal: int) -> torch.Tensor:
    return to_device(cpu, ordinal)


def _wrap(tensor: torch.Tensor, ordinal: int) -> CudaTensor:
    made: CudaTensor = torch.Tensor._make_subclass(CudaTensor, tensor)
    made._ordinal = ordinal
    return made


def _blank(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu")


def empty_strided(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, ordinal: int
) -> CudaTensor:
    """Allocate a tensor on the current stream of a device."""
    with _NO_DISPATCH():
        last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        count = 0 if 0 in size else last + 1
        capsule = native().cuda_double_storage(ordinal, max(count * dtype.itemsize, 1))
        bytes_ = plain_from_dlpack(capsule)
        flat = _blank(dtype).set_(bytes_.untyped_storage(), 0, size, stride)
    return _wrap(flat, ordinal)


def to_device(tensor: torch.Tensor, ordinal: int) -> CudaTensor:
    """Copy to a device, ordered on its current stream. A tensor already there is returned as is."""
    if isinstance(tensor, CudaTensor) and tensor._ordinal == ordinal:
        return tensor
    with _NO_DISPATCH():
        like = torch.empty_like(tensor.detach(), device="cpu")
    made = empty_strided(like.size(), like.stride(), like.dtype, ordinal)
    made.copy_(tensor.detach())
    return made.requires_grad_() if tensor.requires_grad else made


def adopt(capsule: Any) -> CudaTensor:  # noqa: ANN401
    """A tensor on the device memory of a DLPack capsule."""
    ordinal = native().cuda_double_show_as_cpu(capsule)
    return _wrap(plain_from_dlpack(capsule), ordinal)


def _parse_to(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device | None, torch.dtype | None, bool, tuple[Any, ...]]:
    """The device, the dtype and copy= of Tensor.to()."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for argument in args:
        if isinstance(argument, (torch.device, str)):
            device = argument
        elif isinstance(argument, int) and not isinstance(argument, bool):
            device = torch.device("cuda", argument)
        elif isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, torch.Tensor):
            device, dtype = argument.device, argument.dtype
    found = None if device is None else torch.device(device)
    return found, dtype, bool(kwargs.get("copy")), ()


# Kernels


_kernels: dict[int, Callable[[], None]] = {}
_repeated: set[int] = set()  # kernels of graphs, which run repeatedly
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _run(number: int) -> None:
    kernel = _kernels[number] if number in _repeated else _kernels.pop(number)
    try:
        kernel()
    except BaseException:
        text = "a kernel failed: " + traceback.format_exc()
        library.driver().library.cuda_double_report(text.encode())


def is_capturing(ordinal: int) -> bool:
    """Whether the current stream of a device is captured."""
    stream = native().cuda_double_current_stream(ordinal)
    if stream <= 1:
        return False
    status = ctypes.c_int()
    with torch.cuda.device(ordinal):
        library.driver()("cuStreamIsCapturing", stream, ctypes.byref(status))
    return status.value != 0


def launch(
    name: str, ordinal: int, tensors: Sequence[torch.Tensor], kernel: Callable[[], None]
) -> None:
    """Enqueue a function that uses the memory of these tensors on a device's current stream."""
    stream = native().cuda_double_current_stream(ordinal)
    number = next(_numbers)
    _kernels[number] = kernel
    if is_capturing(ordinal):
        _repeated.add(number)
    used = [t for t in tensors if t.numel()]
    addresses = (ctypes.c_void_p * len(used))(*(t.untyped_storage().data_ptr() for t in used))
    sizes = (ctypes.c_size_t * len(used))(*(t.untyped_storage().nbytes() for t in used))
    result = library.driver().library.cuda_double_launch(
        ordinal, ctypes.c_uint64(stream), name.encode(), _run, ctypes.c_void_p(number),
        len(used), addresses, sizes,
    )  # fmt: skip
    if result:
        _kernels.pop(number)
        raise RuntimeError(f"CUDA error {result} from the launch of {name}")


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a non-owning CPU tensor."""
    with _NO_DISPATCH():
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        return _blank(tensor.dtype).set_(flat.untyped_storage(), *place)


def _tree_map(function: Callable[[Any], Any], value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, (list, tuple)):
        return type(value)(_tree_map(function, item) for item in value)
    if isinstance(value, dict):
        return {key: _tree_map(function, item) for key, item in value.items()}
    return function(value)


def _tensors_in(value: Any) -> list[torch.Tensor]:  # noqa: ANN401
    found: list[torch.Tensor] = []
    _tree_map(lambda v: found.append(v) if isinstance(v, torch.Tensor) else None, value)
    return found


_DYNAMIC = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _ordinal(func: Any, tensors: Sequence[torch.Tensor]) -> int:  # noqa: ANN401
    devices = {t.device for t in tensors if isinstance(t, CudaTensor) or t.dim()}
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(map(str, devices)))}! (in {func})"
        )
    return next(t._ordinal for t in tensors if isinstance(t, CudaTensor))


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    if func is _aten.copy_.default:
        return _copy(*args)
    tensors = _tensors_in((args, kwargs))
    ordinal = _ordinal(func, tensors)
    infos = [argument.alias_info for argument in func._schema.arguments]
    writes = any(info is not None and info.is_write for info in infos)
    views = not writes and any(r.alias_info is not None for r in func._schema.returns)
    if views or torch.Tag.inplace_view in func.tags or "set_" in func.name():
        with _NO_DISPATCH():
            done = func(*args, **kwargs)
        return args[0] if writes else _tree_map(lambda v: _rewrap(v, ordinal), done)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": None}
    if _DYNAMIC & set(func.tags) or _has_mask(func, tensors):
        return _at_once(func, args, kwargs, ordinal)
    if writes:
        return _in_place(func, args, kwargs, ordinal, tensors)
    return _functional(func, args, kwargs, ordinal, tensors)


def _rewrap(value: Any, ordinal: int) -> Any:  # noqa: ANN401
    if isinstance(value, torch.Tensor) and not isinstance(value, CudaTensor):
        return _wrap(value, ordinal)
    return value


def _has_mask(func: Any, tensors: Sequence[torch.Tensor]) -> bool:  # noqa: ANN401
    return func.overloadpacket is _aten.index and any(t.dtype == torch.bool for t in tensors[1:])


def _bare(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, CudaTensor):
        return _raw(value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def _at_once(func: Any, args: Any, kwargs: Any, ordinal: int) -> Any:  # noqa: ANN401
    """Wait for the stream, then run an operation whose result the caller needs."""
    synchronize(ordinal)
    done = func(*_tree_map(_bare, args), **_tree_map(_bare, kwargs))
    return _tree_map(lambda v: to_device(v, ordinal) if isinstance(v, torch.Tensor) else v, done)


def _in_place(
    func: Any,  # noqa: ANN401
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ordinal: int,
    tensors: Sequence[torch.Tensor],
) -> Any:  # noqa: ANN401
    bare_args, bare_kwargs = _tree_map(_bare, args), _tree_map(_bare, kwargs)
    launch(func.name(), ordinal, _cuda(tensors), lambda: _ignore(func(*bare_args, **bare_kwargs)))
    written = [
        value
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    written += [
        kwargs[argument.name]
        for argument in func._schema.arguments[len(args) :]
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not func._schema.returns:
        return None
    return written[0] if len(written) == 1 else tuple(written)


def _ignore(_: object) -> None: ...


def _cuda(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if isinstance(tensor, CudaTensor)]


def _zeros(value: Any, *, single: bool) -> Any:  # noqa: ANN401
    """Replace a tensor by zeros of the same shape, or of one element and as many dimensions."""
    if not isinstance(value, torch.Tensor) or not (isinstance(value, CudaTensor) or value.dim()):
        return value
    with _NO_DISPATCH():
        if single:
            return torch.zeros((1,) * value.dim(), dtype=value.dtype, device="cpu")
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        return like.zero_()


def _shape_of_results(func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Tensors with the shapes of an operation's results, computed by running it on zeros.

    torch's meta device could do this, but takes seconds to load in each process.
    """
    single = torch.Tag.pointwise in func.tags and len(func._schema.returns) == 1
    zeros = functools.partial(_zeros, single=single)
    done = func(*_tree_map(zeros, args), **_tree_map(zeros, kwargs))
    if not single or not isinstance(done, torch.Tensor):
        return done
    tensors = [t for t in _tensors_in((args, kwargs)) if isinstance(t, CudaTensor) or t.dim()]
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    with _NO_DISPATCH():
        like = next((t for t in tensors if t.shape == shape), None)
        if like is not None:
            return torch.empty_like(like, dtype=done.dtype, device="cpu")
    return torch.empty(shape, dtype=done.dtype, device="cpu")


def _functional(
    func: Any,  # noqa: ANN401
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ordinal: int,
    tensors: Sequence[torch.Tensor],
) -> Any:  # noqa: ANN401
    """Return new tensors whose contents a kernel computes."""
    shapes = _shape_of_results(func, args, kwargs)
    made = _tree_map(lambda v: _allocate(v, ordinal), shapes)
    if "empty" in func.name():
        return made
    bare_args, bare_kwargs = _tree_map(_bare, args), _tree_map(_bare, kwargs)
    outputs = _tensors_in(made)
    bare_outputs = [_raw(output) for output in outputs]

    def kernel() -> None:
        done = _tensors_in(func(*bare_args, **bare_kwargs))
        for output, value in zip(bare_outputs, done, strict=True):
            output.copy_(value)

    launch(func.name(), ordinal, [*_cuda(tensors), *outputs], kernel)
    return made


def _allocate(shape: Any, ordinal: int) -> Any:  # noqa: ANN401
    if not isinstance(shape, torch.Tensor):
        return shape
    dense = torch.empty_like(shape) if 0 in shape.stride() else shape
    return empty_strided(dense.shape, dense.stride(), dense.dtype, ordinal)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy. To the host: complete on return. From pageable host memory: read immediately."""
    if not isinstance(target, CudaTensor):
        assert isinstance(source, CudaTensor)
        synchronize(source._ordinal)
        with _NO_DISPATCH():
            return target.copy_(_raw(source))
    bare_target, bare_source = _raw(target), _bare(source)
    used = [tensor for tensor in _cuda([target, source]) if tensor.device == target.device]
    if isinstance(source, CudaTensor) and source.device != target.device:
        synchronize(source._ordinal)
    launch("copy_", target._ordinal, used, lambda: _ignore(bare_target.copy_(bare_source)))
    return target


def install_exchange_api() -> None:
    """Install the DLPack exchange API of the class."""
    capsule = torch.Tensor.__dlpack_c_exchange_api__
    api = native().cuda_double_exchange_api(capsule)
    CudaTensor.__dlpack_c_exchange_api__ = api
