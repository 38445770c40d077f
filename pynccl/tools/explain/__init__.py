"""The command ``pynccl explain``: NCCL's choices for a collective over a range of sizes."""

__all__: list[str] = []
