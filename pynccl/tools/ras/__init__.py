"""``pynccl ras``: the communicators of a running job, from NCCL's RAS service."""

__all__: list[str] = []
