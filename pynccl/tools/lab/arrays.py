"""Arrays on CPUs and GPUs, from torch, NumPy or CuPy, for loads and buffers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from pynccl import nccl

__all__ = ["Arrays", "Library", "arrays_of", "installed"]

Library = Literal["torch", "numpy", "cupy"]


class Arrays:
    """The operations of one array library on the memory of one communicator.

    Created by :func:`arrays_of`. An "array" belongs to that library and lives on the communicator's
    device. This class is for NumPy, and for CuPy, whose functions have the same names.

    Args:
        module: the library.
        **options: for functions that create arrays.

    Attributes:
        name: "torch", "numpy" or "cupy".
    """

    name: Library = "numpy"

    def __init__(self, module: Any, **options: object) -> None:  # noqa: ANN401
        self._module = module
        self._options = options

    def _created(self, create: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Create an array on the device, complete on return."""
        return create()

    def of_values(self, values: Sequence[float]) -> Any:  # noqa: ANN401
        """Create a float64 array.

        Args:
            values: the elements.

        Returns:
            A one-dimensional array, complete on return.
        """
        dtype = self._module.float64
        return self._created(lambda: self._module.asarray(values, dtype=dtype, **self._options))

    def values_of(self, array: Any) -> list[float]:  # noqa: ANN401
        """The contents of a one-dimensional array.

        Args:
            array: the array.

        Returns:
            The elements.
        """
        return [float(value) for value in array.tolist()]

    def zeros(self, *shape: int) -> Any:  # noqa: ANN401
        """Create a float32 array of zeros.

        Args:
            *shape: the dimensions, in elements.

        Returns:
            The array, complete on return.
        """
        dtype = self._module.float32
        return self._created(lambda: self._module.zeros(shape, dtype=dtype, **self._options))

    def random(self, *shape: int) -> Any:  # noqa: ANN401
        """Create a float32 array of random numbers from 0 to 1.

        Args:
            *shape: the dimensions, in elements.

        Returns:
            The array, complete on return.
        """
        return self._created(lambda: self._module.random.random(shape).astype("float32"))

    def multiply(self, a: Any, b: Any, out: Any) -> None:  # noqa: ANN401
        """Compute a matrix product.

        Args:
            a: the left matrix.
            b: the right matrix.
            out: the product.
        """
        self._module.matmul(a, b, out=out)

    def copy(self, to: Any, source: Any) -> None:  # noqa: ANN401
        """Copy the contents of an array.

        Args:
            to: the destination.
            source: the source, of the same shape and dtype.
        """
        self._module.copyto(to, source)

    def enqueue(self, stream: nccl.Stream, function: Callable[[], object]) -> None:
        """Run a function that uses the library on a stream.

        On GPUs it is called immediately and enqueues its work. On CPUs the stream's thread calls
        it.

        Args:
            stream: the stream.
            function: takes no arguments.
        """
        stream.launch(function)


class _CuPy(Arrays):
    name: Library = "cupy"

    def __init__(self, module: Any, device: int) -> None:  # noqa: ANN401
        super().__init__(module)
        self._device = device

    def _created(self, create: Callable[[], Any]) -> Any:  # noqa: ANN401
        with self._module.cuda.Device(self._device):
            array = create()
            self._module.cuda.get_current_stream().synchronize()
        return array

    def enqueue(self, stream: nccl.Stream, function: Callable[[], object]) -> None:
        cuda = self._module.cuda
        with cuda.Device(self._device), cuda.ExternalStream(stream.handle, self._device):
            function()


class _Torch(Arrays):
    name: Library = "torch"

    def __init__(self, module: Any, device: int | None) -> None:  # noqa: ANN401
        self._device = module.device("cpu") if device is None else module.device("cuda", device)
        super().__init__(module, device=self._device)

    def _created(self, create: Callable[[], Any]) -> Any:  # noqa: ANN401
        array = create()
        if self._device.type == "cuda":
            self._module.cuda.synchronize(self._device)
        return array

    def random(self, *shape: int) -> Any:  # noqa: ANN401
        dtype = self._module.float32
        return self._created(lambda: self._module.rand(shape, dtype=dtype, **self._options))

    def copy(self, to: Any, source: Any) -> None:  # noqa: ANN401
        to.copy_(source)

    def enqueue(self, stream: nccl.Stream, function: Callable[[], object]) -> None:
        if self._device.type == "cpu":
            return super().enqueue(stream, function)
        cuda = self._module.cuda
        with cuda.stream(cuda.ExternalStream(stream.handle, self._device)):
            function()
        return None


def arrays_of(comm: nccl.Communicator, library: Library | None = None) -> Arrays:
    """Choose the array library for the memory of a communicator.

    Args:
        comm: the communicator.
        library: "torch", "numpy" (CPUs) or "cupy" (GPUs); None is torch if it is installed, else
            the other one.

    Returns:
        The library's operations.

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
    if library not in ("torch", other):
        where = "CPUs" if host else "GPUs"
        raise ValueError(f"library: {library!r} does not support memory of {where}; use {other!r}")
    module = importlib.import_module(library)
    if library == "torch":
        return _Torch(module, None if host else comm.device)
    return Arrays(module) if host else _CuPy(module, comm.device)


def installed(comm: nccl.Communicator) -> Arrays | None:
    """The array library for the memory of a communicator; None if none is installed."""
    try:
        return arrays_of(comm)
    except ModuleNotFoundError:
        return None
