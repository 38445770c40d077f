"""Backend names: ``"nccl"`` for GPUs, ``"host"`` for CPUs, or one for each device."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import ClassVar

import torch
from torch.distributed.constants import default_pg_timeout

from pynccl import libraries, nccl

__all__ = [
    "Backend",
    "BackendConfig",
    "default_pg_timeout",
    "get_default_backend_for_device",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_mpi_available",
    "is_nccl_available",
    "is_ucc_available",
    "is_xccl_available",
]

PROVIDERS = {"nccl": "cuda", "host": "host"}
_DEVICES = {"nccl": "cuda", "host": "cpu"}
_ELSEWHERE = ("gloo", "mpi", "ucc", "xccl", "fake")
_NCCL_TIMEOUT = timedelta(minutes=10)


class Backend(str):
    """See torch.distributed.Backend. The name of a backend, a lowercase string.

    ``Backend(name)`` accepts the name in any case. ``Backend.NCCL`` and ``Backend.HOST`` are
    pynccl's backends; the others are torch's names, for comparisons in existing scripts.

    Raises:
        ValueError: the name is not a string.
    """

    __slots__ = ()

    UNDEFINED = "undefined"
    NCCL = "nccl"
    HOST = "host"
    GLOO = "gloo"
    UCC = "ucc"
    MPI = "mpi"
    XCCL = "xccl"
    FAKE = "fake"

    backend_list: ClassVar[list[str]] = [UNDEFINED, NCCL, HOST]
    default_device_backend_map: ClassVar[dict[str, str]] = {"cpu": HOST, "cuda": NCCL}
    backend_capability: ClassVar[dict[str, list[str]]] = {NCCL: ["cuda"], HOST: ["cpu"]}

    def __new__(cls, name: str) -> str:  # type: ignore[misc]
        if not isinstance(name, str):
            raise ValueError("Backend constructor parameter must be string-ish")
        return name.lower()


class BackendConfig:
    """See torch.distributed.BackendConfig. The backend for each device type.

    Args:
        backend: ``"nccl"``, ``"host"``, ``"cpu:host,cuda:nccl"``, or ``Backend.UNDEFINED`` for the
            default backends of this machine's devices.

    Raises:
        ValueError: the backend is not supported, or does not support the device.
    """

    def __init__(self, backend: str | Backend) -> None:
        name = str(backend).lower()
        self.device_backend_map: dict[str, str] = {}
        if name == Backend.UNDEFINED:
            self.device_backend_map["cpu"] = Backend(Backend.HOST)
            if torch.cuda.is_available():
                self.device_backend_map["cuda"] = Backend(Backend.NCCL)
            return
        for pair in name.split(","):
            device, _, one = pair.strip().rpartition(":")
            one = _known(one.strip())
            device = device.strip() or _DEVICES[one]
            if device != _DEVICES[one]:
                raise ValueError(
                    f"backend {name!r}: {one!r} supports tensors on {_DEVICES[one]!r}, not on "
                    f"{device!r}"
                )
            if device in self.device_backend_map:
                raise ValueError(f"backend {name!r}: two backends for the device {device!r}")
            self.device_backend_map[device] = Backend(one)

    def __repr__(self) -> str:
        return ",".join(f"{device}:{name}" for device, name in self.device_backend_map.items())

    @property
    def name(self) -> str:
        """The name of the only backend, or the names by device type."""
        names = list(self.device_backend_map.values())
        return names[0] if len(names) == 1 else repr(self)

    def get_device_backend_map(self) -> dict[str, str]:
        """Return the backend names by device type: ``{"cpu": "host", "cuda": "nccl"}``."""
        return self.device_backend_map


def _known(name: str) -> str:
    if name in _DEVICES:
        return name
    if name == "pynccl":
        raise ValueError(
            "backend 'pynccl' is torch.distributed's: import pynccl.c10d, then call "
            "torch.distributed.init_process_group('pynccl'). Here, pass backend='host' for tensors "
            "on CPUs, 'nccl' for tensors on GPUs, or None for both"
        )
    if name in _ELSEWHERE:
        raise ValueError(
            f"backend {name!r} is not supported; pass backend='host' for tensors on CPUs, 'nccl' "
            "for tensors on GPUs, or None for both"
        )
    raise ValueError(f"unknown backend {name!r}: pynccl supports 'nccl' and 'host'")


def check_usable(config: BackendConfig) -> None:
    """Check that this machine supports the named backends, before any rank waits for others.

    Raises:
        ValueError: ``"nccl"`` is among them, but torch cannot use a GPU.
        LibraryNotFoundError: libnccl.so.2 was not found or cannot be loaded.
    """
    if Backend.NCCL not in config.device_backend_map.values():
        return
    if not torch.cuda.is_available():
        raise ValueError(
            f"backend {config.name!r}: this machine has no usable GPU: "
            f"{_why_no_gpu()}. Pass backend='host' for tensors on CPUs, or None for the devices of "
            "the machine; `pynccl doctor` diagnoses the installation"
        )
    libraries.load("cuda")


def _why_no_gpu() -> str:
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides all GPUs"
    return "torch.cuda.is_available() is False"


def timeout_of(timeout: timedelta | None, config: BackendConfig) -> timedelta:
    """Return the timeout of a group: as given, or torch's default for its backend.

    Raises:
        TypeError: it is not a timedelta.
    """
    if timeout is None:
        return _NCCL_TIMEOUT if config.name == Backend.NCCL else default_pg_timeout
    if not isinstance(timeout, timedelta):
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout}"
        )
    return timeout


def limited(timeout: timedelta) -> AbstractContextManager[object]:
    """Apply a group's timeout to the calls in the block that wait for other ranks."""
    seconds = timeout.total_seconds()
    return nccl.deadline(seconds) if seconds > 0 else nullcontext()


def get_default_backend_for_device(device: str | torch.device) -> str:
    """See torch.distributed.get_default_backend_for_device. Returns ``"host"`` or ``"nccl"``."""
    kind = device.type if isinstance(device, torch.device) else torch.device(device).type
    backend = Backend.default_device_backend_map.get(kind)
    if backend is None:
        raise ValueError(f"Default backend not registered for device : {device}")
    return backend


def is_available() -> bool:
    """See torch.distributed.is_available. Returns True."""
    return True


def is_nccl_available() -> bool:
    """See torch.distributed.is_nccl_available. Loads libnccl.so.2 if that is possible."""
    try:
        libraries.load("cuda")
    except ImportError:
        return False
    return True


def is_backend_available(backend: str) -> bool:
    """See torch.distributed.is_backend_available.

    For ``"nccl"`` it returns whether libnccl.so.2 can be loaded. backend may name several backends,
    such as ``"cpu:host,cuda:nccl"``.
    """
    try:
        config = BackendConfig(Backend(backend))
    except ValueError:
        return False
    return "nccl" not in config.device_backend_map.values() or is_nccl_available()


def is_gloo_available() -> bool:
    """See torch.distributed.is_gloo_available. False: pynccl's backend for CPUs is ``"host"``."""
    return False


def is_mpi_available() -> bool:
    """See torch.distributed.is_mpi_available. False: pynccl's backend for CPUs is ``"host"``."""
    return False


def is_ucc_available() -> bool:
    """See torch.distributed.is_ucc_available. Returns False."""
    return False


def is_xccl_available() -> bool:
    """See torch.distributed.is_xccl_available. Returns False."""
    return False
