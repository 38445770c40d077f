"""pynccl: NCCL called directly from Python, on GPUs and on CPUs.

``pynccl.nccl`` has the objects (communicators, streams, groups), ``pynccl.raw`` every function of
nccl.h under its own name. Neither needs torch.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
