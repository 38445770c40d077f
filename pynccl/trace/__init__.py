"""Traces: what the operations of a process were and when they ran, as nccl.trace() records it."""
