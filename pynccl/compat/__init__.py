"""Modules with the interfaces of other NCCL bindings, implemented over pynccl."""

__all__: list[str] = []
