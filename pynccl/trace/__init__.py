"""Traces: what the operations of a process were and when they ran, as nccl.trace() records it.

:mod:`pynccl.trace.chrome` reads and writes them, and the command ``pynccl trace`` shows them. See
docs/trace.md.
"""

__all__: list[str] = []
