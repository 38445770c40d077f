"""Tensors of torch on the device of a communicator, and functions of torch on a stream."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pynccl import nccl

if TYPE_CHECKING:
    import torch

__all__ = ["enqueue", "has_torch", "random", "zeros"]


def has_torch() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def zeros(comm: nccl.Communicator, *shape: int) -> torch.Tensor:
    """Create a float32 tensor of zeros on the device of a communicator.

    Args:
        comm: the communicator.
        *shape: the dimensions, in elements.

    Returns:
        The tensor, complete on return.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    import torch

    return _complete(torch.zeros(shape, device=_device(comm)))


def random(comm: nccl.Communicator, *shape: int) -> torch.Tensor:
    """Create a float32 tensor of random numbers from 0 to 1, as :func:`zeros`."""
    import torch

    return _complete(torch.rand(shape, device=_device(comm)))


def enqueue(stream: nccl.Stream, function: Callable[[], object]) -> None:
    """Run a function that uses torch on a stream.

    On GPUs it is called immediately and enqueues its work. On CPUs the stream's thread calls it.

    Args:
        stream: the stream.
        function: takes no arguments.
    """
    if stream.library.memory == "host":
        stream.launch(function)
        return
    from torch import cuda

    external: Any = cuda.ExternalStream
    with cuda.stream(external(stream.handle, device=stream.device)):
        function()


def _device(comm: nccl.Communicator) -> str:
    return "cpu" if comm.provider == "host" else f"cuda:{comm.device}"


def _complete(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_cuda:
        import torch

        torch.cuda.synchronize(tensor.device)
    return tensor
