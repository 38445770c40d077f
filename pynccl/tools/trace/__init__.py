"""Traces of a process's operations: their arguments and times, as recorded by nccl.trace().

:mod:`pynccl.tools.trace.chrome` reads and writes them; the command ``pynccl trace`` prints them.
See docs/trace.md.

While a trace is active, each call writes an entry to the log of its thread
(csrc/watch/trace_state.h) without a lock, and records an event before and after the operation. A
recording has no events. One collector at a time drains the logs, into memory or into the file.
Definitions precede the entries that refer to them, so a truncated file is still readable.
``recording`` decodes the bytes into a ``ProcessTrace``, on which everything else operates.
``merge`` matches the operations of different ranks by communicator, kind and number, and derives
the clock offsets. A damaged file raises TraceError and no other exception.
"""

__all__: list[str] = []
