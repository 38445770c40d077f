"""A process group: its communicators, streams and asynchronous operations."""

__all__: list[str] = []
