"""The command ``pynccl explain``: what NCCL chooses for a collective over a range of sizes."""

__all__: list[str] = []
