"""Arrays on CPUs and GPUs, from torch, NumPy or CuPy, for loads and buffers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, get_args

from pynccl import nccl

__all__ = ["Arrays", "Library", "arrays_of", "installed"]

Library = Literal["torch", "numpy", "cupy"]


class Arrays(Protocol):
    """The operations of one array library on the memory of one communicator.

    Created by :func:`arrays_of`. An "array" belongs to that library and lives on the communicator's
    device.

    Attributes:
        name: "torch", "numpy" or "cupy".
    """

    name: Library

    def of_values(self, values: Sequence[float]) -> Any:  # noqa: ANN401
        """Create a float64 array.

        Args:
            values: the elements.

        Returns:
            A one-dimensional array, complete on return.
        """

    def values_of(self, array: Any) -> list[float]:  # noqa: ANN401
        """The contents of a one-dimensional array.

        Args:
            array: the array.

        Returns:
            The elements.
        """

    def zeros(self, *shape: int) -> Any:  # noqa: ANN401
        """Create a float32 array of zeros.

        Args:
            *shape: the dimensions, in elements.

        Returns:
            The array, complete on return.
        """

    def random(self, *shape: int) -> Any:  # noqa: ANN401
        """Create a float32 array of random numbers from 0 to 1.

        Args:
            *shape: the dimensions, in elements.

        Returns:
            The array, complete on return.
        """

    def multiply(self, a: Any, b: Any, out: Any) -> None:  # noqa: ANN401
        """Compute a matrix product.

        Args:
            a: the left matrix.
            b: the right matrix.
            out: the product.
        """

    def copy(self, to: Any, source: Any) -> None:  # noqa: ANN401
        """Copy the contents of an array.

        Args:
                to: the destination.
                source: the source, of the same shape and dtype.
        """

    def enqueue(self, stream: nccl.Stream, function: Callable[[], object]) -> None:
        """Run a function that uses the library on a stream.

        On GPUs it is called immediately and enqueues its work. On CPUs the stream's thread calls
        it.

        Args:
            stream: the stream.
            function: takes no arguments.
        """


def _run_on_cpu(stream: nccl.Stream, function: Callable[[], object]) -> None:
    stream.launch(function)


class _Torch:
    name: Library = "torch"

    def __init__(self, comm: nccl.Communicator) -> None:
        import torch

        self._torch = torch
        on_gpu = comm.provider == "cuda"
        self._device = torch.device("cuda", comm.device) if on_gpu else torch.device("cpu")

    def _complete(self, array: Any) -> Any:  # noqa: ANN401
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)
        return array

    def of_values(self, values: Sequence[float]) -> Any:  # noqa: ANN401
        torch = self._torch
        return self._complete(torch.tensor(values, dtype=torch.float64, device=self._device))

    def values_of(self, array: Any) -> list[float]:  # noqa: ANN401
        return [float(value) for value in array.tolist()]

    def zeros(self, *shape: int) -> Any:  # noqa: ANN401
        torch = self._torch
        return self._complete(torch.zeros(*shape, dtype=torch.float32, device=self._device))

    def random(self, *shape: int) -> Any:  # noqa: ANN401
        torch = self._torch
        return self._complete(torch.rand(*shape, dtype=torch.float32, device=self._device))

    def multiply(self, a: Any, b: Any, out: Any) -> None:  # noqa: ANN401
        self._torch.mm(a, b, out=out)

    def copy(self, to: Any, source: Any) -> None:  # noqa: ANN401
        to.copy_(source)

    def enqueue(self, stream: nccl.Stream, function: Callable[[], object]) -> None:
        if self._device.type == "cpu":
            return _run_on_cpu(stream, function)
        torch = self._torch
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle, self._device)):
            function()
        return None


class _NumPy:
    """NumPy, or CuPy, whose functions have the same names."""

    name: Library = "numpy"

    def __init__(self) -> None:
        import numpy

        self._module: Any = numpy

    def of_values(self, values: Sequence[float]) -> Any:  # noqa: ANN401
        return self._module.asarray(values, dtype="float64")

    def values_of(self, array: Any) -> list[float]:  # noqa: ANN401
        return [float(value) for value in array.tolist()]

    def zeros(self, *shape: int) -> Any:  # noqa: ANN401
        return self._module.zeros(shape, "float32")

    def random(self, *shape: int) -> Any:  # noqa: ANN401
        return self._module.random.random(shape).astype("float32")

    def multiply(self, a: Any, b: Any, out: Any) -> None:  # noqa: ANN401
        self._module.matmul(a, b, out=out)

    def copy(self, to: Any, source: Any) -> None:  # noqa: ANN401
        self._module.copyto(to, source)

    def enqueue(self, stream: nccl.Stream, function: Callable[[], object]) -> None:
        _run_on_cpu(stream, function)


class _CuPy(_NumPy):
    name: Library = "cupy"

    def __init__(self, comm: nccl.Communicator) -> None:
        import cupy

        self._module = cupy
        self._device = comm.device

    def of_values(self, values: Sequence[float]) -> Any:  # noqa: ANN401
        with self._module.cuda.Device(self._device):
            array = super().of_values(values)
            self._module.cuda.get_current_stream().synchronize()
        return array

    def zeros(self, *shape: int) -> Any:  # noqa: ANN401
        with self._module.cuda.Device(self._device):
            array = super().zeros(*shape)
            self._module.cuda.get_current_stream().synchronize()
        return array

    def random(self, *shape: int) -> Any:  # noqa: ANN401
        with self._module.cuda.Device(self._device):
            array = super().random(*shape)
            self._module.cuda.get_current_stream().synchronize()
        return array

    def enqueue(self, stream: nccl.Stream, function: Callable[[], object]) -> None:
        with self._module.cuda.Device(self._device):
            external = self._module.cuda.ExternalStream(stream.handle, self._device)
            with external:
                function()


def arrays_of(comm: nccl.Communicator, library: Library | None = None) -> Arrays:
    """Choose the array library for the memory of a communicator.

    Args:
        comm: the communicator.
        library: "torch", "numpy" (CPUs) or "cupy" (GPUs); None is torch if it is installed, else
            the other one.

    Returns:
        The library's operations, as :class:`Arrays`.

    Raises:
        ValueError: the library is unknown, or does not support this kind of memory.
        ModuleNotFoundError: the library is not installed, or none is.
    """
    host = comm.provider == "host"
    other: Library = "numpy" if host else "cupy"
    if library is None:
        library = "torch" if importlib.util.find_spec("torch") else other
    if library not in get_args(Library):
        raise ValueError(f"library: {library!r} is not one of {', '.join(get_args(Library))}")
    if library == "torch":
        return _Torch(comm)
    if library != other:
        where = "CPUs" if host else "GPUs"
        raise ValueError(f"library: {library!r} does not support memory of {where}; use {other!r}")
    return _NumPy() if host else _CuPy(comm)


def installed(comm: nccl.Communicator) -> Arrays | None:
    """The array library for the memory of a communicator; None if none is installed."""
    try:
        return arrays_of(comm)
    except ModuleNotFoundError:
        return None
