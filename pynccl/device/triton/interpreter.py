"""Changes to Triton's interpreter that communicating kernels require.

* **Threads.** The interpreter stores the position in the grid in one object per process, and
  patches functions of triton.language during a launch. :func:`install` makes the position
  thread-local, and keeps the functions patched until no thread runs a kernel.
* **Memory written by peers.** After a kernel, the interpreter copies each tensor argument back to
  its origin. For a CPU tensor, this copies the memory to itself, and can lose a peer's store or
  signal. :func:`install` removes these copies.
* **Waiting.** A wait yields to other threads and processes, and fails after a time limit.
"""

from __future__ import annotations

import threading
import time
from typing import Any

__all__ = ["install", "pause", "set_timeout"]

_SPINS = 20  # yielding polls before sleeping
_SLEEPS = (20e-6, 1e-3)  # the first and the longest sleep, in seconds

_lock = threading.RLock()
_timeout = 60.0


class _Position(threading.local):
    grid_idx: tuple[int, int, int] | None = None
    grid_dim: tuple[int, int, int] | None = None
    deadline = 0.0


_position = _Position()


def set_timeout(seconds: float) -> None:
    """Set the time limit of waits in Triton's interpreter.

    Args:
        seconds: the time limit of a single wait, for the whole process; 60 by default.

    Raises:
        ValueError: seconds is not positive.
    """
    global _timeout  # noqa: PLW0603 - a setting of the process
    if not seconds > 0:
        raise ValueError(f"seconds: {seconds} is not positive")
    _timeout = seconds


def pause(spins: int) -> None:
    """Yield or sleep in a polling loop.

    Args:
        spins: the number of previous calls in the loop.

    Raises:
        TimeoutError: the wait has exceeded the time limit.
    """
    if spins == 0:
        _position.deadline = time.monotonic() + _timeout
    elif time.monotonic() > _position.deadline:
        raise TimeoutError(f"a kernel has waited for a signal for {_timeout} seconds")
    first, longest = _SLEEPS
    time.sleep(0 if spins < _SPINS else min(first * (spins - _SPINS + 1), longest))


class _Patches:
    """The patched functions of triton.language, while any thread runs a kernel."""

    def __init__(self, patch: Any) -> None:
        self._patch = patch
        self._running = 0
        self._scopes: list[Any] = []
        self._done: set[int] = set()

    def __enter__(self) -> None:
        with _lock:
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._running -= 1
            if self._running == 0:
                self._done.clear()
                while self._scopes:
                    self._scopes.pop().restore()

    def patch(self, function: Any, nothing: Any) -> Any:
        """Patch the functions that a kernel uses, without restoring them while kernels run."""
        import triton.language as tl

        with _lock:
            if self._running == 0:
                return self._patch(function)
            used = {id(v) for v in function.__globals__.values() if v is tl or v is tl.core}
            if not used or not used <= self._done:
                self._scopes.append(self._patch(function))
                self._done |= used
            return nothing


def _is_on_cpu(argument: Any) -> bool:
    base = getattr(argument, "base", argument)  # unwraps a TensorDescriptor or a TensorWrapper
    device = getattr(base, "device", None)
    return getattr(device, "type", None) == "cpu"


def _without_cpu(arguments: Any, like: Any) -> list[Any]:
    # Replaces each CPU tensor, in the order of `like`, by an argument that the copy back skips.
    kept: list[Any] = []
    for argument, reference in zip(arguments, like, strict=True):
        if isinstance(reference, tuple):
            kept.append(tuple(_without_cpu(argument, reference)))
        else:
            kept.append(None if _is_on_cpu(reference) else argument)
    return kept


def install() -> None:
    """Patch Triton's interpreter, once per process. Importing the package calls this.

    Raises:
        ImportError: this version of Triton's interpreter is not supported.
    """
    import triton
    from triton.runtime import interpreter

    builder = getattr(interpreter, "interpreter_builder", None)
    executor = getattr(interpreter, "GridExecutor", None)
    needed = [
        builder,
        executor,
        getattr(interpreter, "_patch_lang", None),
        getattr(interpreter, "_LangPatchScope", None),
        getattr(executor, "_restore_args_dev", None),
    ]
    if builder is None or executor is None or None in needed:
        raise ImportError(
            f"pynccl.device.triton does not support the interpreter of Triton {triton.__version__}"
        )
    with _lock:
        if hasattr(executor, "_pynccl_installed"):
            return
        executor._pynccl_installed = True

        class Builder(type(builder)):  # type: ignore[misc]
            """Stores the position in the grid per thread."""

            @property
            def grid_idx(self) -> Any:
                return _position.grid_idx

            @grid_idx.setter
            def grid_idx(self, value: Any) -> None:
                _position.grid_idx = value

            @property
            def grid_dim(self) -> Any:
                return _position.grid_dim

            @grid_dim.setter
            def grid_dim(self, value: Any) -> None:
                _position.grid_dim = value

        builder.__class__ = Builder

        patches = _Patches(interpreter._patch_lang)
        nothing = interpreter._LangPatchScope()
        interpreter._patch_lang = lambda function: patches.patch(function, nothing)

        call, restore = executor.__call__, executor._restore_args_dev

        def launch(self: Any, *args: Any, **kwargs: Any) -> None:
            with patches:
                call(self, *args, **kwargs)

        def restore_others(
            self: Any,
            args_dev: Any,
            args_hst: Any,
            kwargs: Any,
            kwargs_hst: Any,
        ):
            names = list(kwargs)
            restore(
                self,
                _without_cpu(args_dev, args_dev),
                _without_cpu(args_hst, args_dev),
                dict(zip(names, _without_cpu(kwargs.values(), kwargs.values()), strict=True)),
                {n: kwargs_hst[n] for n in names},
            )

        executor.__call__ = launch
        executor._restore_args_dev = restore_others
