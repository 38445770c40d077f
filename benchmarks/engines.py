"""The engines of torch.distributed: their names, and those to compare with the default one.

A backend's name is ambiguous: "nccl" is ProcessGroupNCCL up to torch 2.14 and ProcessGroupNCCL2
from 2.15 on, where "nccl-legacy" is the former, unless an environment variable selects another one.
"""

from __future__ import annotations

import importlib

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Backend

__all__ = ["OTHERS", "engine", "register"]

_OF_TORCH = ("nccl", "nccl-legacy", "nccl2")
# By device. Creating a group of one that this torch or machine lacks raises the reason.
OTHERS = {"cpu": ("pynccl",), "cuda": ("nccl-legacy", "nccl2", "nccl4py", "pynccl")}


def engine(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Return the name of a process group's engine.

    Args:
        group: the group; None is the default group.
        device: the device of the tensors.

    Returns:
        The backend, with the class if torch has several for NCCL: ``"gloo"``, ``"nccl
        (ProcessGroupNCCL2)"``.
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
    """Register a backend that some versions of torch do not find by its name."""
    if backend == "pynccl":
        import pynccl.c10d  # noqa: F401 - it registers the backend: torch up to 2.13 needs that
    elif backend == "nccl4py" and backend not in Backend.backend_list:
        # The entry point of torch 2.15.0 names a module that is not there.
        name = "torch.distributed._nccl4py.backend"
        importlib.import_module(name)._register_nccl4py_backend()
