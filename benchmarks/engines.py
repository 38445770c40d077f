"""The engines of torch.distributed: which one was measured, and which ones can be measured.

A backend's name does not say it: "nccl" is ProcessGroupNCCL up to torch 2.14 and ProcessGroupNCCL2
from 2.15 on, where "nccl-legacy" is the other one, and a variable of the environment changes that.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Backend

__all__ = ["Candidate", "candidates", "engine", "installed", "label", "register", "registry"]

# What torch's functions that make a backend make.
_CREATORS = {
    "_create_nccl_process_group": "ProcessGroupNCCL",
    "_create_nccl2_process_group": "ProcessGroupNCCL2",
}
_OF_TORCH = ("nccl", "nccl-legacy", "nccl2")
_NCCL4PY = "torch.distributed._nccl4py"


@dataclass(frozen=True)
class Candidate:
    """A backend to be measured beside torch's own of the device.

    Attributes:
        backend: its name in torch.distributed.
        reason: why it cannot be measured, or ''.
    """

    backend: str
    reason: str = ""


def engine(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """The engine of a process group, as tables name it.

    Args:
        group: None is the default group.
        device: of the tensors.

    Returns:
        ``"gloo"``, ``"nccl (ProcessGroupNCCL2)"`` and the like: see label().
    """
    found = group or dist.group.WORLD
    assert found is not None
    implementation = found._get_backend(device)
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it.
    implementation = getattr(implementation, "wrapped_pg", implementation)
    by_device = dict(pair.split(":") for pair in dist.get_backend_config(found).split(","))
    return label(by_device[device.type], type(implementation).__name__)


def label(backend: str, implementation: str) -> str:
    """The name of an engine: the backend's, with the class where torch has several for NCCL."""
    return f"{backend} ({implementation})" if backend in _OF_TORCH else backend


def registry() -> dict[str, str]:
    """The engines for NCCL that this torch has: from the name of the backend to its class.

    It needs no GPU. Up to torch 2.13 there is one; later ones register what they have.
    """
    found: dict[str, str] = {}
    if not dist.is_nccl_available():
        return found
    if not (ensure := getattr(Backend, "_ensure_backend_registered", None)):
        return {"nccl": "ProcessGroupNCCL"}
    for name in _OF_TORCH:
        ensure(name)
        if plugin := Backend._plugins.get(name.upper()):
            creator = getattr(plugin.creator_fn, "__name__", "")
            found[name] = _CREATORS.get(creator, creator)
    if importlib.util.find_spec(_NCCL4PY):
        found["nccl4py"] = "NCCL4PyBackend"
    return found


def installed() -> set[str]:
    """Of the packages that a backend needs beside torch, those that are there."""
    return {name for name in ("nccl4py",) if importlib.util.find_spec("nccl")}


def candidates(
    device: str, version: str, engines: Mapping[str, str], packages: Collection[str]
) -> list[Candidate]:
    """What to measure beside the backend that torch takes for a device, and what cannot be.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        version: torch's.
        engines: as registry() gives them.
        packages: as installed() gives them.
    """
    if device == "cpu":
        of_gpus = "it is for GPUs"
        return [
            *(Candidate(name, of_gpus) for name in ("nccl-legacy", "nccl4py")),
            Candidate("pynccl"),
        ]
    found = [_other(name, version, engines) for name in ("nccl-legacy", "nccl2")]
    # "nccl2" is mentioned only where it can be measured: where "nccl" is still the older engine.
    found = [one for one in found if one.backend != "nccl2" or not one.reason]
    reason = ""
    if "nccl4py" not in engines:
        reason = f"torch {version} has no backend over nccl4py; torch 2.15 has"
    elif "nccl4py" not in packages:
        reason = "nccl4py is not installed: pip install nccl4py"
    return [*found, Candidate("nccl4py", reason), Candidate("pynccl")]


def _other(name: str, version: str, engines: Mapping[str, str]) -> Candidate:
    """Another of torch's own, unless it is what "nccl" is."""
    if name not in engines:
        ours = label("nccl", engines.get("nccl", "not available"))
        return Candidate(name, f"torch {version} has no such backend; it has {ours}")
    if engines[name] == engines.get("nccl"):
        return Candidate(name, f"it is {engines[name]}, as nccl in torch {version}")
    return Candidate(name)


def register(backend: str) -> None:
    """Have torch.distributed know a backend that is not found by its name everywhere."""
    if backend == "pynccl":
        import pynccl.c10d  # noqa: F401 - it registers the backend: torch up to 2.13 needs that
    elif backend == "nccl4py" and backend not in Backend.backend_list:
        # The entry point of torch 2.15.0 names a module that is not there.
        importlib.import_module(f"{_NCCL4PY}.backend")._register_nccl4py_backend()
