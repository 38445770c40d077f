"""Traces: what the operations of a process were and when they ran, as nccl.trace() records it.

:mod:`pynccl.tools.trace.chrome` reads and writes them, and the command ``pynccl trace`` shows them.
See docs/trace.md.

While a trace is on, a call writes an entry into the log of its thread (csrc/core/trace_log.h),
without a lock, and records an event before and after the operation; a recording has no events. One
collector at a time empties the logs, into memory or into the file, in the form of
csrc/core/trace_output.h: what the numbers in the entries stand for comes first, so that a part of a
file is complete. ``recording`` turns the bytes into a ``ProcessTrace``, on which everything else
works. ``merge`` finds the operations of other ranks by communicator, kind and number, and from them
the offsets of the clocks. ``rows`` checks types while a file is read: a damaged file is a
TraceError, never another exception.
"""

__all__: list[str] = []
