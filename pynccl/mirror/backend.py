"""The names of backends: ``"nccl"`` for GPUs, ``"host"`` for CPUs, or one for each device."""

from __future__ import annotations

from typing import ClassVar

import torch

from pynccl import libraries

__all__ = [
    "Backend",
    "BackendConfig",
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


class Backend(str):
    """The name of a backend: a lowercase string.

    ``Backend(name)`` takes it in any case. ``Backend.NCCL`` and ``Backend.HOST`` are those that
    pynccl has; the others are torch's names, for comparisons in existing scripts.
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

    def __new__(cls, name: str):
        if not isinstance(name, str):
            raise ValueError("Backend constructor parameter must be string-ish")
        return name.lower()


class BackendConfig:
    """Which backend moves the tensors of which kind of device.

    Raises:
        ValueError: a backend that pynccl does not have, or for a device that it is not for.
    """

    def __init__(self, backend: Backend):
        name = str(backend).lower()
        self.device_backend_map: dict[str, Backend] = {}
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
                    f"backend {name!r}: {one!r} moves the tensors of {_DEVICES[one]!r} devices, "
                    f"not of {device!r}"
                )
            if device in self.device_backend_map:
                raise ValueError(f"backend {name!r}: there are two for the device {device!r}")
            self.device_backend_map[device] = Backend(one)

    def __repr__(self) -> str:
        return ",".join(f"{device}:{name}" for device, name in self.device_backend_map.items())

    @property
    def name(self) -> str:
        """What the user would pass: the name alone where there is one."""
        names = list(self.device_backend_map.values())
        return names[0] if len(names) == 1 else repr(self)

    def get_device_backend_map(self) -> dict[str, Backend]:
        """The backend of each kind of device."""
        return self.device_backend_map


def _known(name: str) -> str:
    if name in _DEVICES:
        return name
    if name in _ELSEWHERE:
        raise ValueError(
            f"backend {name!r}: pynccl is NCCL; pass backend='host' for tensors on CPUs, 'nccl' "
            "for tensors on GPUs, or None for both"
        )
    raise ValueError(f"backend {name!r}: pynccl has 'nccl' and 'host'")


def get_default_backend_for_device(device: str | torch.device) -> str:
    """The backend that moves a device's tensors where none is named.

    Raises:
        ValueError: there is none.
    """
    kind = device.type if isinstance(device, torch.device) else torch.device(device).type
    backend = Backend.default_device_backend_map.get(kind)
    if backend is None:
        raise ValueError(f"Default backend not registered for device : {device}")
    return backend


def is_available() -> bool:
    """Whether the mirror can be used: it can, where this can be asked."""
    return True


def is_nccl_available() -> bool:
    """Whether libnccl.so.2 can be loaded."""
    try:
        libraries.load("cuda")
    except ImportError:
        return False
    return True


def is_backend_available(backend: str) -> bool:
    """Whether a backend, or each of ``"cpu:host,cuda:nccl"``, can be used."""
    try:
        config = BackendConfig(Backend(backend))
    except ValueError:
        return False
    return "nccl" not in config.device_backend_map.values() or is_nccl_available()


def is_gloo_available() -> bool:
    """False: pynccl has no Gloo; its backend for CPUs is ``"host"``."""
    return False


def is_mpi_available() -> bool:
    """False: pynccl has no MPI; its backend for CPUs is ``"host"``."""
    return False


def is_ucc_available() -> bool:
    """False: pynccl has no UCC."""
    return False


def is_xccl_available() -> bool:
    """False: pynccl has no XCCL."""
    return False
