"""torch.distributed's functions on tensors and objects, by subject."""

__all__: list[str] = []
