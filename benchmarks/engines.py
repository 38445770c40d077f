"""The engines of torch.distributed: which one was measured, and others to measure beside it.

A backend's name does not say it: "nccl" is ProcessGroupNCCL up to torch 2.14 and ProcessGroupNCCL2
from 2.15 on, where "nccl-legacy" is the other one, and a variable of the environment changes that.
"""

from __future__ import annotations

import importlib

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Backend

__all__ = ["OTHERS", "engine", "register"]

_OF_TORCH = ("nccl", "nccl-legacy", "nccl2")
# By device. Those that this torch or this machine lacks give the reason when a group is made.
OTHERS = {"cpu": ("pynccl",), "cuda": ("nccl-legacy", "nccl2", "nccl4py", "pynccl")}


def engine(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """The engine of a process group, as tables name it.

    Args:
        group: None is the default group.
        device: of the tensors.

    Returns:
        ``"gloo"``, ``"nccl (ProcessGroupNCCL2)"`` and the like: the backend, with the class where
        torch has several for NCCL.
    """
    found = group or dist.group.WORLD
    assert found is not None
    implementation = found._get_backend(device)
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it.
    implementation = getattr(implementation, "wrapped_pg", implementation)
    by_device = dict(pair.split(":") for pair in dist.get_backend_config(found).split(","))
    backend = by_device[device.type]
    return f"{backend} ({type(implementation).__name__})" if backend in _OF_TORCH else backend


def register(backend: str) -> None:
    """Have torch.distributed know a backend that is not found by its name everywhere."""
    if backend == "pynccl":
        import pynccl.c10d  # noqa: F401 - it registers the backend: torch up to 2.13 needs that
    elif backend == "nccl4py" and backend not in Backend.backend_list:
        # The entry point of torch 2.15.0 names a module that is not there.
        name = "torch.distributed._nccl4py.backend"
        importlib.import_module(name)._register_nccl4py_backend()
