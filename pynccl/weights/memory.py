"""Operations of a transfer on torch tensors and NumPy arrays, on CPUs and GPUs.

A "raw" tensor is contiguous, has the dtype in which it is sent, and lies in the session's memory:
data can be sent from it, or received into it, directly.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pynccl import _C
from pynccl.weights.checksum import checksums
from pynccl.weights.dtypes import size_of

__all__ = [
    "Library",
    "Memory",
    "Tensor",
    "check_storage",
    "memory_for",
    "memory_of",
]

Tensor = Any  # a torch tensor, a NumPy array, or an object that these accept by DLPack
Library = Literal["torch", "numpy"]

_CUDA = 2  # kDLCUDA
_WITHOUT_NCCL = frozenset(  # sent as bytes
    ("int16", "uint16", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")
)


class Memory:
    """The operations of one library on the memory of one device."""

    library: Library
    on_host = True
    device: int | None = None  # the GPU

    def __init__(self, module: Any, kind: type) -> None:  # noqa: ANN401
        self._module = module
        self._kind = kind

    def wrap(self, tensor: Tensor) -> Tensor:
        """A tensor of the library that shares memory with the given one."""
        if isinstance(tensor, self._kind):
            return tensor
        if not hasattr(tensor, "__dlpack__"):
            raise TypeError(f"tensors: expected a tensor, got {type(tensor).__name__}")
        return self._module.from_dlpack(tensor)

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Allocate a tensor."""
        raise NotImplementedError

    def bucket(self, buffer: _C.Buffer) -> Tensor:
        """The bytes of a buffer."""
        return self._module.from_dlpack(buffer)

    def dtype_of(self, tensor: Tensor) -> str:
        """The name of a tensor's dtype."""
        raise NotImplementedError

    def kind_of(self, tensor: Tensor) -> object:
        """The properties of a tensor that determine whether it is raw."""
        raise NotImplementedError

    def raw(self, tensor: Tensor, dtype: str) -> Tensor | None:
        """The tensor, or its bytes, if it is raw; else None."""
        if not self._is_raw(tensor, dtype):
            return None
        return self._bytes(tensor) if dtype in _WITHOUT_NCCL else tensor

    def address(self, raw: Tensor) -> int:
        """The address of a raw tensor."""
        raise NotImplementedError

    def typed(self, bucket: Tensor, offset: int, shape: Sequence[int], dtype: str) -> Tensor:
        """A range of a bucket as a tensor."""
        place = bucket[offset : offset + math.prod(shape) * size_of(dtype)]
        return place.view(self._dtype(dtype)).reshape(tuple(shape))

    def assign(self, target: Tensor, source: Tensor) -> None:
        """Copy values, if necessary to another dtype or device."""
        raise NotImplementedError

    def pack(
        self, bucket: Tensor, offsets: list[int], sizes: list[int], raws: list[Tensor]
    ) -> list[int]:
        """Copy raw tensors to their offsets in a bucket; return their checksums."""
        return _C.pack(bucket, offsets, sizes, raws)

    def unpack(
        self, bucket: Tensor, offsets: list[int], sizes: list[int], raws: list[Tensor]
    ) -> list[int]:
        """Copy from offsets in a bucket to raw tensors; return their checksums afterwards."""
        return _C.unpack(bucket, offsets, sizes, raws)

    def checksum(self, raw: Tensor) -> int:
        """The checksum of a raw tensor or a part of a bucket."""
        return _C.checksum(raw)

    def synchronize(self) -> None:
        """Wait for the work enqueued on the library's current stream; on CPUs there is none."""

    def _is_raw(self, tensor: Tensor, dtype: str) -> bool:
        raise NotImplementedError

    def _bytes(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(-1).view(self._module.uint8)

    def _dtype(self, name: str) -> Any:  # noqa: ANN401
        raise NotImplementedError


class _NumPy(Memory):
    library: Library = "numpy"

    def __init__(self) -> None:
        import numpy

        super().__init__(numpy, numpy.ndarray)

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        return self._module.empty(tuple(shape), self._dtype(dtype))

    def dtype_of(self, tensor: Tensor) -> str:
        return str(tensor.dtype)

    def kind_of(self, tensor: Tensor) -> object:
        return tensor.dtype, tensor.shape, tensor.strides

    def address(self, raw: Tensor) -> int:
        return int(raw.__array_interface__["data"][0])

    def assign(self, target: Tensor, source: Tensor) -> None:
        self._module.copyto(target, source, casting="unsafe")

    def _is_raw(self, tensor: Tensor, dtype: str) -> bool:
        return bool(tensor.flags.c_contiguous and tensor.dtype == self._dtype(dtype))

    def _dtype(self, name: str) -> Any:  # noqa: ANN401
        try:
            return self._module.dtype(name)
        except TypeError:
            try:
                import ml_dtypes
            except ImportError:
                raise ValueError(f"dtype: NumPy supports {name} only with ml_dtypes") from None
            return self._module.dtype(getattr(ml_dtypes, name))


class _Torch(Memory):
    library: Library = "torch"

    def __init__(self, device: str = "cpu") -> None:
        import torch

        super().__init__(torch, torch.Tensor)
        self._device = torch.device(device)
        self._names: dict[object, str] = {}

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        return self._module.empty(tuple(shape), dtype=self._dtype(dtype), device=self._device)

    def dtype_of(self, tensor: Tensor) -> str:
        if (name := self._names.get(tensor.dtype)) is None:
            name = self._names[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        return name

    def kind_of(self, tensor: Tensor) -> object:
        return tensor.dtype, tensor.shape, tensor.stride(), tensor.device

    def address(self, raw: Tensor) -> int:
        return int(raw.data_ptr())

    def assign(self, target: Tensor, source: Tensor) -> None:
        with self._module.inference_mode():  # else torch rejects tensors created in it
            target.copy_(source)

    def _is_raw(self, tensor: Tensor, dtype: str) -> bool:
        return (
            self.dtype_of(tensor) == dtype
            and tensor.is_contiguous()
            and tensor.device == self._device
        )

    def _bytes(self, tensor: Tensor) -> Tensor:
        return super()._bytes(tensor.detach())

    def _dtype(self, name: str) -> Any:  # noqa: ANN401
        try:
            return getattr(self._module, name)
        except AttributeError:
            version = self._module.__version__
            raise ValueError(f"dtype: torch {version} does not support {name}") from None


class _TorchOnGpu(_Torch):
    """Copies and checksums are torch operations on the current stream, which is synchronised."""

    on_host = False

    def pack(
        self, bucket: Tensor, offsets: list[int], sizes: list[int], raws: list[Tensor]
    ) -> list[int]:
        places = self._places(bucket, offsets, sizes)
        self._copy(places, list(map(self._bytes, raws)))
        return checksums(places)

    def unpack(
        self, bucket: Tensor, offsets: list[int], sizes: list[int], raws: list[Tensor]
    ) -> list[int]:
        targets = list(map(self._bytes, raws))
        self._copy(targets, self._places(bucket, offsets, sizes))
        return checksums(targets)

    def checksum(self, raw: Tensor) -> int:
        return checksums([self._bytes(raw)])[0]

    def synchronize(self) -> None:
        self._module.cuda.current_stream(self._device).synchronize()

    def _places(self, bucket: Tensor, offsets: list[int], sizes: list[int]) -> list[Tensor]:
        return [bucket[at : at + size] for at, size in zip(offsets, sizes, strict=True)]

    def _copy(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            if target.numel() != source.numel():
                raise ValueError(f"tensors: {source.numel()} bytes for {target.numel()}")
        with self._module.inference_mode():
            self._module._foreach_copy_(targets, sources)


def check_storage(tensors: Mapping[str, Tensor], known: list[int]) -> list[int]:
    """Check that torch tensors have the memory that their shapes require.

    A storage can be freed or shrunk while tensors use it, as FSDP does with ``resize_(0)``; torch
    and NCCL then read and write at invalid addresses. NumPy arrays own their memory.

    Args:
        tensors: by name.
        known: the result of the last call; [] before the first. Storages of the same sizes are not
            checked again.

    Returns:
        The sizes of the storages.

    Raises:
        ValueError: a tensor has no storage in memory, or one that is too small.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    sizes = []
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            if tensor.layout is not torch.strided:
                raise ValueError(f"{name}: expected a dense tensor, got {tensor.layout}")
            sizes.append(tensor.untyped_storage().nbytes())
    if sizes == known:
        return sizes
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            if storage.device.type == "meta":
                raise ValueError(f"{name}: the tensor is on the meta device and has no memory")
            if _reach(tensor) > storage.nbytes():
                raise ValueError(
                    f"{name}: the tensor needs {_reach(tensor)} bytes of its storage, which has "
                    f"{storage.nbytes()} now; it was freed or resized"
                )
    return sizes


def _reach(tensor: Tensor) -> int:
    """The bytes of its storage that a torch tensor needs."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + last + 1) * tensor.element_size())


def memory_for(
    tensor: Tensor | None, provider: str | None, library: Library | None, device: int | None
) -> Memory:
    """The memory of a session: that of a tensor, or of the provider if there is none."""
    if tensor is not None:
        provider, gpu = _place_of(tensor)
        device = gpu if device is None else device
    elif provider is None:
        provider = "host" if device is None else "cuda"
    if provider == "cuda" and device is None:
        import torch

        device = torch.cuda.current_device()
    memory = memory_of(library or _library_of(tensor), provider, device or 0)
    memory.device = device
    return memory


def _library_of(tensor: Tensor) -> Library:
    """The library of a tensor; for other objects torch, if it is installed."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return "numpy"
    return "torch" if importlib.util.find_spec("torch") else "numpy"


def _place_of(tensor: Tensor) -> tuple[str, int | None]:
    """The provider and the GPU of a tensor."""
    if hasattr(tensor, "__dlpack_device__"):
        try:
            kind, number = tensor.__dlpack_device__()
        except ValueError:  # a torch device without DLPack; check_storage() names the tensor
            return "host", None
        if int(kind) == _CUDA:
            return "cuda", int(number)
    return "host", None


def memory_of(library: Library, provider: str, device: int) -> Memory:
    """The operations of a library on the memory of a provider, and of a GPU if it is "cuda".

    Raises:
        ValueError: the library is unknown, or is NumPy for GPU memory.
    """
    if library == "torch":
        return _Torch() if provider == "host" else _TorchOnGpu(f"cuda:{device}")
    if library != "numpy":
        raise ValueError(f"library: {library!r} is neither 'torch' nor 'numpy'")
    if provider != "host":
        raise ValueError("library: NumPy does not support memory of GPUs; use torch")
    return _NumPy()
