"""Modules with the interfaces of other bindings of NCCL, over pynccl."""

__all__: list[str] = []
