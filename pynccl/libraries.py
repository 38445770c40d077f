"""Library search: the file that a provider is loaded from, and why.

A provider is a library with NCCL's C ABI, and its stream functions: ``cuda`` is libnccl.so.2 with
libcuda.so.1, ``host`` is hostnccl, which is part of pynccl. A process can use both.

Environment:
    PYNCCL_PROVIDER: the default provider, ``cuda`` or ``host``.
    PYNCCL_NCCL_LIBRARY: the path of libnccl.so.2.
    PYNCCL_HOSTNCCL_LIBRARY: the path of hostnccl.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, SupportsIndex

from pynccl import _C
from pynccl._internal import installation
from pynccl.errors import LibraryNotFoundError

__all__ = [
    "PROVIDERS",
    "Location",
    "default_provider",
    "device_count",
    "hostnccl_preload",
    "load",
    "locate",
    "resolve",
    "resolve_all",
]

installation.check()

PROVIDERS = ("cuda", "host")

_FOLDER = Path(__file__).parent / "lib"
_NCCL_SONAME = "libnccl.so.2"
_LAST_DEVICE = 2**31 - 1
_MOST_RANKS = 2**16  # per process: more than any library supports


class Location(NamedTuple):
    """The path of a library and the reason for its choice.

    Attributes:
        path: the path of the file.
        reason: an environment variable, "already loaded in this process", or how the file was
            found.
    """

    path: str
    reason: str


def locate(provider: str) -> Location:
    """Find the file that a provider is loaded from, without loading it.

    Args:
        provider: ``"cuda"`` or ``"host"``.

    Returns:
        A Location: the path, and the reason for the choice.

    Raises:
        ValueError: there is no such provider.
        LibraryNotFoundError: no library was found.
    """
    if provider == "cuda":
        return _locate_nccl()
    if provider == "host":
        if path := os.environ.get("PYNCCL_HOSTNCCL_LIBRARY"):
            return Location(path, "PYNCCL_HOSTNCCL_LIBRARY")
        return Location(str(_FOLDER / "libhostnccl.so"), "part of pynccl")
    raise ValueError(f"provider: {provider!r} is not one of {', '.join(map(repr, PROVIDERS))}")


def hostnccl_preload() -> Path:
    """Return the path of hostnccl as libnccl.so.2, for LD_PRELOAD with any NCCL client.

    Returns:
        The path; the command ``pynccl hostnccl`` prints it.
    """
    return _FOLDER / "preload" / _NCCL_SONAME


def _locate_nccl() -> Location:
    loaded = _C.loaded_path(_NCCL_SONAME)
    if path := os.environ.get("PYNCCL_NCCL_LIBRARY"):
        if loaded and os.path.realpath(path) != os.path.realpath(loaded):
            raise LibraryNotFoundError(
                f"PYNCCL_NCCL_LIBRARY is {path}, but {loaded} is already loaded in this process; "
                "a process cannot use two NCCLs"
            )
        return Location(path, "PYNCCL_NCCL_LIBRARY")
    if loaded:
        return Location(loaded, "already loaded in this process")
    # Deferred: the import takes milliseconds, and the host provider does not need it.
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise LibraryNotFoundError(
            f"{_NCCL_SONAME} was not found: cuda-pathfinder, which locates it, is not installed"
        ) from error
    try:
        found = load_nvidia_dynamic_lib("nccl")
    except DynamicLibNotFoundError as error:
        raise LibraryNotFoundError(
            f"{_NCCL_SONAME} was not found; install nvidia-nccl-cu13 or nvidia-nccl-cu12, or set "
            "PYNCCL_NCCL_LIBRARY to its path"
        ) from error
    return Location(found.abs_path or _NCCL_SONAME, f"found by cuda-pathfinder ({found.found_via})")


@functools.cache
def _load_provider(provider: str) -> _C.Library:
    location = locate(provider)
    library = _C.open_library(location.path)
    memory = "device" if provider == "cuda" else "host"
    if library.memory != memory:
        raise LibraryNotFoundError(
            f"provider {provider!r}: {location.path} ({location.reason}) is a library for "
            f"{library.memory} memory"
        )
    return library


def load(provider: str | os.PathLike[str] | None = None) -> _C.Library:
    """Load a library.

    Args:
        provider: ``"cuda"``, ``"host"``, the path of a library with NCCL's C ABI, or None for
            :func:`default_provider`.

    Returns:
        The Library, the same object for the same file.

    Raises:
        TypeError, ValueError: provider is neither a provider nor a path.
        LibraryNotFoundError: the library was not found, cannot be loaded, or is older than NCCL
            2.18.
    """
    if provider is None:
        provider = default_provider()
    if not isinstance(provider, (str, os.PathLike)):
        raise TypeError(f"provider: expected 'cuda', 'host' or a path, got {provider!r}")
    name = os.fspath(provider)
    if name in PROVIDERS:
        return _load_provider(name)
    if os.sep not in name:
        raise ValueError(
            f"provider: {name!r} is neither {' nor '.join(map(repr, PROVIDERS))} nor a path"
        )
    return _C.open_library(name)


@functools.cache
def default_provider() -> str:
    """Return the provider to use if the caller names none.

    Returns:
        ``PYNCCL_PROVIDER`` if it is set, otherwise ``"cuda"`` if there is a usable GPU, otherwise
        ``"host"``.

    Raises:
        ValueError: ``PYNCCL_PROVIDER`` is not a provider.
    """
    if provider := os.environ.get("PYNCCL_PROVIDER"):
        if provider not in PROVIDERS:
            raise ValueError(
                f"PYNCCL_PROVIDER: {provider!r} is not one of {', '.join(map(repr, PROVIDERS))}"
            )
        return provider
    try:
        return "cuda" if load("cuda").device_names() else "host"
    except (LibraryNotFoundError, RuntimeError):
        return "host"


def _parse_device(device: object) -> tuple[str | None, int]:
    """Return the provider that a device implies, or None, and its ordinal (-1: current device)."""
    if device is None:
        return None, -1
    kind, ordinal = getattr(device, "type", None), getattr(device, "index", None)
    if isinstance(device, str):
        kind, _, index = device.partition(":")
        if index and not index.isdecimal():
            raise ValueError(f"device: {device!r} has no number after the colon")
        ordinal = int(index) if index else None
    elif kind is None:
        try:
            ordinal = operator.index(device)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(
                f"device: expected an integer, 'cpu', 'cuda:1' or a torch.device, got {device!r}"
            ) from None
        if ordinal < 0:
            raise ValueError(f"device: {ordinal} is negative")
        return None, ordinal
    if kind == "cpu":
        return "host", 0
    if kind == "cuda":
        return "cuda", -1 if ordinal is None else ordinal
    raise ValueError(f"device: {device!r} is neither a CUDA device nor the CPU")


def resolve(provider: str | None, device: object) -> tuple[_C.Library, int]:
    """Find the library and the device of a new communicator.

    Args:
        provider: ``"cuda"``, ``"host"``, a path, or None.
        device: an integer, ``"cpu"``, ``"cuda:1"``, a ``torch.device``, or None.

    Returns:
        The Library and the device's ordinal; -1 is the current device.

    Raises:
        TypeError, ValueError: an invalid argument, or a device of another provider.
        LibraryNotFoundError: the provider's library was not found.
    """
    implied, ordinal = _parse_device(device)
    if ordinal > _LAST_DEVICE:
        raise ValueError(f"device: {device!r} is above {_LAST_DEVICE}")
    if implied is not None and provider in PROVIDERS and provider != implied:
        raise ValueError(f"device: {device!r} does not belong to provider {provider!r}")
    return load(provider if provider is not None else implied), ordinal


def device_count(library: _C.Library) -> int:
    """Return the number of devices of a library's driver.

    Args:
        library: the library.

    Raises:
        ValueError: there is no device.
    """
    count = len(library.device_names())
    if count == 0:
        raise ValueError(f"devices: {library.driver_path} reports no GPU; run `pynccl doctor`")
    return count


def resolve_all(
    provider: str | None, devices: SupportsIndex | Sequence[object]
) -> tuple[_C.Library, list[int]]:
    """Find the library and the device ordinals for all ranks of one process.

    Args:
        provider: as for :func:`resolve`.
        devices: the number of ranks, which are distributed over the devices, or a sequence with one
            device per rank.

    Returns:
        The Library and the ordinal of each rank's device.

    Raises:
        TypeError, ValueError: an invalid argument, devices of different providers, or no device.
        LibraryNotFoundError: the provider's library was not found.
    """
    if isinstance(devices, SupportsIndex):
        count = operator.index(devices)
        if count < 1:
            raise ValueError(f"devices: {count} is below 1")
        if count > _MOST_RANKS:
            raise ValueError(f"devices: {count} is above {_MOST_RANKS}")
        library = load(provider)
        available = device_count(library)
        return library, [rank % available for rank in range(count)]
    if not devices:
        raise ValueError("devices: the sequence is empty")
    libraries, ordinals = zip(*(resolve(provider, device) for device in devices), strict=True)
    if any(library is not libraries[0] for library in libraries):
        raise ValueError(f"devices: {devices!r} belong to different providers")
    return libraries[0], [max(ordinal, 0) for ordinal in ordinals]
