"""Times operations of pynccl and of torch.distributed side by side, and checks their results."""

__all__: list[str] = []
