"""Internal modules of pynccl, without a stable interface."""

__all__: list[str] = []
