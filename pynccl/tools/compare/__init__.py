"""Runs a torch.distributed script over torch's backend and over pynccl's, and compares them."""

__all__: list[str] = []
