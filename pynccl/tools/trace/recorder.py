"""Traces and recordings of this process: nccl.trace(), nccl.range(), environment variables."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pynccl import _C
from pynccl._internal import explanation
from pynccl.libraries import load

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pynccl.tools.trace.model import ProcessTrace

__all__ = ["Trace", "range", "start_from_environment", "trace"]

_Path: TypeAlias = "str | os.PathLike[str]"

_TRACE_OPERATIONS = 1_000_000
_RECORD_BYTES = 1 << 30
# Functions that end the traces and ranges started by environment variables, with the process id.
_ends: list[tuple[int, Callable[[], object]]] = []
_STOP_SECONDS = 10.0
_DOMAIN = "pynccl"  # of NVTX
_PROFILE = ("kernel", "proxy")  # copied from _internal.plugin, which is slow to import


class Trace:
    """A trace of this process, created by :func:`trace`. See docs/trace.md.

    Attributes:
        process: the result, a :class:`pynccl.tools.trace.model.ProcessTrace`; None until the trace
            ends.
        path: the file that was written, or None.
    """

    def __init__(
        self,
        path: _Path | None,
        *,
        limit: int,
        annotate: bool,
        graphs: bool,
        profile: Collection[str],
    ) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ValueError(f"limit: expected a positive number of operations, got {limit!r}")
        if isinstance(profile, str) or not set(_PROFILE).issuperset(profile):
            names = ", ".join(map(repr, _PROFILE))
            raise ValueError(f"profile: expected a collection of {names}, got {profile!r}")
        self._pattern = None if path is None else os.fspath(path)
        self._limit = limit
        self._annotate = annotate
        self._graphs = graphs
        self._profile = tuple(profile)
        self._began = False
        self._outer: Callable[[str, int, str], Callable[[], object]] | None = None
        self._events: int | None = None  # the last of NCCL's profiler events before the trace
        self.process: ProcessTrace | None = None
        self.path: str | None = None

    def __enter__(self) -> Trace:
        if self._began:
            raise ValueError("trace: a Trace can be used only once; create another one")
        profiler = _Profiler(torch=True) if self._annotate else None
        _C.start_trace(self._limit, self._graphs)
        if profiler is not None:
            self._outer = _C.set_profiler(profiler)
        if explanation.is_enabled():
            from pynccl._internal import plugin  # deferred: slow to import

            self._events = plugin.start_profile(self._profile)
        self._began = True
        return self

    def __exit__(self, *_: object) -> None:
        from pynccl.tools.trace import recording  # would slow down the import of pynccl

        if self._annotate:
            _C.set_profiler(self._outer)
        self.process = recording.parse(_C.stop_trace(_STOP_SECONDS))
        if self._events is not None:
            from pynccl._internal import plugin
            from pynccl.tools.trace import profiled

            events = plugin.stop_profile(self._events, self._profile)
            if not plugin.profiler_version():
                _warn_of_unknown_profiler(self.process)
            operations = profiled.with_algorithms(self.process.operations, events)
            self.process = replace(self.process, operations=operations)
        if self._pattern is not None:
            from pynccl.tools.trace import chrome  # only needed for saving

            self.path = _C.path_of_process(self._pattern)
            chrome.save(self.process, self.path)

    def __repr__(self) -> str:
        if self.process is not None:
            return f"<pynccl.nccl.Trace of {len(self.process.operations)} operations>"
        return f"<pynccl.nccl.Trace {'in progress' if self._began else 'not started'}>"


def _warn_of_unknown_profiler(trace: ProcessTrace) -> None:
    communicators = trace.communicators.values()
    if not any(one.provider == "cuda" and one.nranks > 1 for one in communicators):
        return
    if text := explanation.unknown_interface(load("cuda"), "ncclProfiler"):
        warnings.warn(f"trace: {text}: there are no algorithms in it", stacklevel=3)


class _Profiler:
    """Opens a range of NVTX, and of torch's profiler, around each operation."""

    def __init__(self, *, torch: bool) -> None:
        self._nvtx = _nvtx()
        self._torch = torch

    def __call__(self, operation: str, nbytes: int, group: str) -> Callable[[], None]:
        nvtx, function = self._nvtx, None
        if nvtx is not None:
            nvtx.push_range(operation, domain=_DOMAIN, category=group or None, payload=nbytes)
        if self._torch:
            function = _enter_torch(f"pynccl.{operation}", f"{nbytes} bytes, {group}")

        def close() -> None:
            if function is not None:
                function.__exit__(None, None, None)
            if nvtx is not None:
                nvtx.pop_range(domain=_DOMAIN)

        return close


@functools.cache
def _nvtx() -> Any:  # noqa: ANN401 - a module, if installed
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx


def _enter_torch(name: str, args: str | None = None) -> Any:  # noqa: ANN401 - None without torch
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    function = torch.profiler.record_function(name, args)
    function.__enter__()
    return function


def trace(
    path: _Path | None = None,
    *,
    limit: int = _TRACE_OPERATIONS,
    annotate: bool = False,
    graphs: bool = False,
    profile: Collection[str] = _PROFILE,
) -> Trace:
    """Trace the operations of this process in a with block.

        with nccl.trace("step.json") as trace:
            comm.all_reduce(x)

    Each operation of nccl.Communicator, the mirror and the torch.distributed backend is recorded,
    with both providers: its arguments, the time of its call, and, by a pair of events, the times at
    which its stream reached and completed it. The end of the block waits for the operations, at
    most 10 seconds. A captured call is recorded without times. Launches of a Graph are timed, and
    with ``graphs`` so are the operations in them. Waits, launches and the ranges of range() are
    recorded as well. Calls of pynccl.raw are not.

    Args:
        path: a file for the trace, as Chrome trace JSON: Perfetto opens it, and ``pynccl trace``
            merges those of several ranks. The rank of the process is inserted before the suffix:
            "step.json" becomes "step.0.json". None writes no file.
        limit: maximum number of operations; later ones are only counted.
        annotate: whether operations become ranges of NVTX, if the package nvtx is installed, and of
            torch's profiler, if torch is imported. PYNCCL_NVTX=1 opens those of NVTX without a
            trace.
        graphs: whether operations that are captured from now on are timed in each launch of their
            Graph. Two graph nodes record events around each of them. A launch has these times if it
            was done when the graph was launched again, or when the trace ended.
        profile: after :func:`explain`, what NCCL's profiler records for each operation beside its
            algorithm, protocol, channels and kernel launch: ``"kernel"``, the times of the kernel's
            channels, for which NCCL runs its proxy thread, and ``"proxy"``, what the proxies waited
            for. ``()`` is cheapest.

    Returns:
        A Trace, which is a context manager.

    Raises:
        ValueError: limit is below 1, or profile has another name; on entering the block, this
            process is already being traced, for example with PYNCCL_TRACE.
        OSError: on leaving the block, the file cannot be written.
    """
    return Trace(path, limit=limit, annotate=annotate, graphs=graphs, profile=profile)


class range:  # noqa: N801 - used as nccl.range()
    """A user-defined range in traces, NVTX and torch's profiler, as a context manager.

        with nccl.range("forward", compute=True):
            y = model(x)

    Args:
        name: name of the range.
        compute: whether it is compute, which communication can hide behind: ``pynccl trace show``
            then counts communication outside of such ranges as exposed.
        stream: the stream whose progress starts and ends the range: an object with
            __cuda_stream__, a nccl.Stream of either provider, or a cudaStream_t. With None, the
            range belongs to the calling thread.

    Raises:
        TypeError: name is not a string.
    """

    def __init__(self, name: str, *, compute: bool = False, stream: object = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name: expected a string, got {name!r}")
        self._name = name
        self._compute = compute
        self._stream = stream
        self._number = 0
        self._library, self._handle = _stream_of(stream)
        self._nvtx = _nvtx()
        self._function: Any = None

    def __enter__(self) -> range:
        if self._nvtx is not None:
            self._nvtx.push_range(self._name)
        self._function = _enter_torch(self._name)
        self._number = _C.begin_range(self._name, self._compute, self._library, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        _C.end_range(self._number, self._library, self._handle)
        if self._function is not None:
            self._function.__exit__(None, None, None)
        if self._nvtx is not None:
            self._nvtx.pop_range()


def _stream_of(stream: object) -> tuple[_C.Library | None, int]:
    """The library and the handle of a stream."""
    if stream is None:
        return None, 0
    if isinstance(stream, _C.Stream):
        return stream.library, stream.handle
    if isinstance(stream, int):
        return load("cuda"), stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise TypeError(f"stream: expected a stream, got {stream!r}")
    return load("cuda"), int(protocol()[1])


def start_from_environment() -> None:
    """Start the traces and ranges that the environment requests, until exit."""
    import atexit

    if os.environ.get("PYNCCL_NVTX", "0") not in ("", "0"):
        if _nvtx() is None:
            warnings.warn("PYNCCL_NVTX: the package nvtx is not installed", stacklevel=2)
        else:
            _C.set_profiler(_Profiler(torch=False))
    if path := os.environ.get("PYNCCL_TRACE"):
        whole = trace(path)
        whole.__enter__()
        _ends.append((os.getpid(), lambda: whole.__exit__(None, None, None)))
    if path := os.environ.get("PYNCCL_RECORD"):
        text = os.environ.get("PYNCCL_RECORD_LIMIT", "")
        if text and not (text.isascii() and text.isdigit() and int(text) < 1 << 63):
            raise ValueError(f"PYNCCL_RECORD_LIMIT: {text!r} is not a number of bytes")
        _C.start_recording(path, int(text) if text else _RECORD_BYTES)
        _ends.append((os.getpid(), _C.stop_recording))
    if _ends:
        atexit.register(end_from_environment)


def end_from_environment() -> None:
    """Write the files requested by PYNCCL_TRACE and PYNCCL_RECORD, at process exit."""
    while _ends:
        pid, end = _ends.pop()
        if pid == os.getpid():  # a forked child has neither
            end()
