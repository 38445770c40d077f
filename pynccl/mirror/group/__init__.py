"""A process group: its communicators and streams, and the operations on it."""

__all__: list[str] = []
