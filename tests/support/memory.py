"""Test buffers with one interface: NumPy arrays on the host, torch tensors on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tests.support import dtypes

if TYPE_CHECKING:
    import torch

GUARD = 64  # bytes on either side of a buffer that must stay unwritten
_FILL = 0xA5


class Memory(Protocol):
    def put(self, array: np.ndarray) -> Any:  # noqa: ANN401 - an array or a tensor
        """Return a new, fully written buffer with these contents between two guards."""

    def get(self, buffer: Any) -> np.ndarray:  # noqa: ANN401
        """Wait for all enqueued work, check the guards, and return the contents of a buffer."""

    def set(self, buffer: Any, array: np.ndarray | float) -> None:  # noqa: ANN401
        """Write new contents to a buffer. The write is complete on return."""


class OnlyDlpack:
    """An object with the DLPack protocol of an array, and no other."""

    def __init__(self, array: Any) -> None:  # noqa: ANN401
        self._array = array

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return self._array.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> object:
        return self._array.__dlpack_device__()


class HostMemory:
    def put(self, array: np.ndarray) -> np.ndarray:
        base = np.full(array.nbytes + 2 * GUARD, _FILL, np.uint8)
        place = np.ndarray(array.shape, array.dtype, base.data, GUARD)
        place[...] = array
        return place

    def get(self, buffer: np.ndarray) -> np.ndarray:
        base = buffer.base
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        if base is not None:
            raw = np.frombuffer(base, np.uint8)
            start = buffer.__array_interface__["data"][0] - raw.__array_interface__["data"][0]
            _check_guards(raw[:start], raw[start + buffer.nbytes :])
        return buffer.copy()

    def set(self, buffer: np.ndarray, array: np.ndarray | float) -> None:
        buffer[...] = array


class CudaMemory:
    def __init__(self, device: int) -> None:
        self._device = device

    def put(self, array: np.ndarray) -> torch.Tensor:
        import torch

        base = np.full(array.nbytes + 2 * GUARD, _FILL, np.uint8)
        base[GUARD : GUARD + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        there = torch.from_numpy(base).to(f"cuda:{self._device}")
        torch.cuda.synchronize(self._device)
        inner = there[GUARD : GUARD + array.nbytes].view(dtypes.torch_dtype(array.dtype))
        return inner.view(array.shape)

    def get(self, buffer: torch.Tensor) -> np.ndarray:
        import torch

        torch.cuda.synchronize(self._device)
        whole = torch.empty(0, dtype=torch.uint8, device=buffer.device).set_(
            buffer.untyped_storage()
        )
        raw = whole.cpu().numpy()
        start = buffer.storage_offset() * buffer.element_size()
        nbytes = buffer.numel() * buffer.element_size()
        _check_guards(raw[:start], raw[start + nbytes :])
        array = np.frombuffer(raw[start : start + nbytes].tobytes(), dtypes.of_torch(buffer.dtype))
        return array.reshape(buffer.shape).copy()

    def set(self, buffer: torch.Tensor, array: np.ndarray | float) -> None:
        import torch

        dtype = dtypes.of_torch(buffer.dtype)
        whole = np.ascontiguousarray(np.broadcast_to(np.asarray(array, dtype), buffer.shape))
        buffer.copy_(torch.from_numpy(whole))
        torch.cuda.synchronize(self._device)


def memory_of(provider: str, device: int | None) -> Memory:
    """The memory of a provider's communicators."""
    return HostMemory() if device is None else CudaMemory(device)


def _check_guards(before: np.ndarray, after: np.ndarray) -> None:
    if (before != _FILL).any() or (after != _FILL).any():
        raise AssertionError("bytes outside of the buffer were written")
