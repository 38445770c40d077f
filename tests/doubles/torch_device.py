"""Stands in for torch.cuda where torch's own tensors are in the double's memory.

They reach C++ as CUDA tensors, which a c10d::Backend needs: cuda/torch/device.cpp is the device.
CUDA_DOUBLE_TENSORS=device chooses this for a process, in place of torch_cuda.py's tensors.
"""

from __future__ import annotations

import atexit
import functools

import torch

from tests.doubles import torch_cuda

__all__ = ["activate"]


@functools.cache
def activate() -> None:
    """Put the stand-ins in place, once in a process."""
    for name, stand_in in torch_cuda.STAND_INS.items():
        setattr(torch.cuda, name, stand_in)
    atexit.register(torch_cuda.stop)
