"""Stand-ins for torch.cuda if torch's own tensors use the double's memory.

C++ sees CUDA tensors, as a c10d::Backend requires. The device is cuda/torch/device.cpp.
CUDA_DOUBLE_TENSORS=device selects this for a process, in place of torch_cuda.py's tensors.
"""

from __future__ import annotations

import atexit
import functools

import torch

from tests.doubles import torch_cuda

__all__ = ["activate"]


@functools.cache
def activate() -> None:
    """Install the stand-ins, once per process."""
    for name, stand_in in torch_cuda.STAND_INS.items():
        setattr(torch.cuda, name, stand_in)
    atexit.register(torch_cuda.stop)
