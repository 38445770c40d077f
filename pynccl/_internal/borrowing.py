"""Communicator.borrow(): finds the owner's handle and the library that it belongs to.

torch, nccl4py and CuPy objects are recognized if those packages are imported already.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pynccl import _C
from pynccl.libraries import load

if TYPE_CHECKING:
    import torch

__all__ = ["borrow", "loaded"]

_NCCL = "libnccl.so.2"


def borrow(
    owner: Any,  # noqa: ANN401
    *,
    provider: str | os.PathLike[str] | None = None,
    device: object = None,
) -> _C.Communicator:
    """Use a communicator that another owner created and frees.

        comm = nccl.Communicator.borrow(process_group)

    The result has the methods of a Communicator, and its own time limits and flight record.
    close(), the garbage collector and the end of the process only drop the handle. abort(),
    finalize(), suspend(), resume() and register_pool() are refused. revoke(), recover(),
    shrink(abort=True), an expired time limit and an interrupted wait end the owner's operations as
    well: they revoke the communicator, which the owner must still free. With a library older than
    NCCL 2.28.7, an expired time limit closes the borrowed communicator and does not affect the
    owner's.

    The owner is kept alive until close(). Once it has closed its communicator, calls raise
    ValueError if that can be detected, which it cannot for an integer, unless it is the handle of a
    pynccl Communicator. Operations of the owner and of the borrower share one communicator: all
    ranks must issue them in the same order.

    Args:
        owner: a Communicator; a pynccl process group; a torch process group or its backend (pynccl
            or nccl); an nccl4py or CuPy communicator; or an ncclComm_t as an integer.
        provider: the provider of the handle, for owners other than pynccl's: "cuda", "host" or the
            path of a library. None is the libnccl.so.2 loaded in this process.
        device: for a process group, the device of the communicator: a torch.device, its name, or
            the number of a GPU. None is the group's only device or, on GPUs, the current one.

    Returns:
        A Communicator.

    Raises:
        TypeError: owner is none of these.
        ValueError: the owner has closed its communicator or has not created it yet, the handle
            belongs to another library, or the library or the device is unknown.
        NcclError: the library rejects the handle.
    """
    _C.check_outside_group("borrow")
    if isinstance(owner, _C.ProcessGroup):
        comms = {kind: one.comm for kind, one in owner.comm_streams().items() if not one.closed}
        return borrow(_chosen(comms, device), provider=provider)
    backend = _backend(owner, device)
    if backend is not None:
        return _borrow_from_torch(backend, provider, device)
    if device is not None:
        raise ValueError(f"device: {device!r} is given, but owner is not a process group")
    if isinstance(owner, _C.Communicator):
        _check_same(owner.library, provider)
        return _C.borrow_handle(owner.library, owner.handle, owner, None)
    if (attribute := _attribute(owner)) is not None:
        return _ask(owner, operator.attrgetter(attribute), provider)
    if isinstance(owner, bool) or not hasattr(owner, "__index__"):
        raise TypeError(
            "owner: expected a communicator of pynccl, nccl4py or CuPy, a process group of pynccl "
            f"or torch, or an integer, got {type(owner).__name__}"
        )
    handle = operator.index(owner)
    if not 0 < handle < 2**64:
        raise ValueError(f"owner: {handle} is not an address")
    library = loaded() if provider is None else load(provider)
    return _C.borrow_handle(library, handle, None, None)


def _borrow_from_torch(
    backend: Any,  # noqa: ANN401
    provider: str | os.PathLike[str] | None,
    device: object,
) -> _C.Communicator:
    """Borrow from the backend of a torch process group."""
    if hasattr(backend, "communicator"):
        import torch

        if device is not None:
            devices = [torch.device(device)]  # type: ignore[call-overload]
        else:
            devices = [one for one in (torch.device("cpu"), _current_device()) if one]
        found = ((one.type, backend.communicator(one)) for one in devices)
        comms = {kind: comm for kind, comm in found if comm is not None}
        return borrow(_chosen(comms, device), provider=provider)

    current = _current_device() if device is None else device

    def ask(backend: Any) -> int:  # noqa: ANN401
        with _on(current):  # _comm_ptr() uses the current device
            return int(backend._comm_ptr())

    return _ask(backend, ask, provider)


def _chosen(comms: dict[str, Any], device: object) -> Any:  # noqa: ANN401
    """Select a process group's communicator for a device, from its communicators by device type."""
    if device is not None:
        import torch

        kind = torch.device(device).type  # type: ignore[call-overload]
        comms = {kind: comms[kind]} if kind in comms else {}
    if len(comms) > 1:
        raise ValueError("device: the group has communicators on several devices")
    if not comms:
        raise ValueError(
            "owner: the process group has no communicator on this device yet; it creates one for "
            "its first operation there"
        )
    return next(iter(comms.values()))


def _current_device() -> torch.device | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def _on(device: object) -> contextlib.AbstractContextManager[object]:
    import torch

    return contextlib.nullcontext() if device is None else torch.cuda.device(device)


def _backend(owner: Any, device: object) -> Any:  # noqa: ANN401
    """Return the backend of a torch process group that can lend its communicator, or None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    if isinstance(owner, distributed.ProcessGroup):
        import torch

        kinds = owner._device_types if device is None else [torch.device(device)]  # type: ignore[call-overload]
        found = [owner._get_backend(torch.device(kind)) for kind in kinds]
        lending = [one for one in dict.fromkeys(found) if _lends(one)]
        if len(lending) == 1:
            return lending[0]
        if lending:
            raise ValueError(
                "device: the process group has several backends; pass the device of one"
            )
        names = ", ".join(sorted({one.name() for one in found})) or "no backend"
        raise ValueError(f"owner: the process group has {names}, which has no ncclComm_t")
    base = getattr(sys.modules["torch._C._distributed_c10d"], "Backend", ())
    if isinstance(owner, base):
        if not _lends(owner):
            raise ValueError(f"owner: {owner!r} has no ncclComm_t")
        return owner
    return None


def _lends(backend: Any) -> bool:  # noqa: ANN401
    return hasattr(backend, "_comm_ptr") or type(backend).__name__ == "PyncclBackend"


def _attribute(owner: object) -> str | None:
    """Return the attribute of an nccl4py or CuPy communicator with its ncclComm_t, 0 if closed."""
    for module, name, attribute in (
        ("nccl.core", "Communicator", "ptr"),
        ("cupy_backends.cuda.libs.nccl", "NcclCommunicator", "comm"),
    ):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(owner, kind):
            return attribute
    return None


def _ask(
    owner: Any,  # noqa: ANN401
    get: Callable[[Any], int],
    provider: str | os.PathLike[str] | None,
) -> _C.Communicator:
    """Borrow from an owner that reports its handle."""
    library = loaded()
    _check_same(library, provider)
    handle = get(owner)
    if not handle:
        raise ValueError("owner: its communicator is closed or not created yet")
    return _C.borrow_handle(library, handle, owner, lambda: get(owner))


def loaded() -> _C.Library:
    """Return the libnccl.so.2 that is loaded in this process."""
    path = _C.loaded_path(_NCCL)
    if not path:
        raise ValueError(f"provider: no {_NCCL} is loaded, so the handle's library is unknown")
    return load(path)


def _check_same(library: _C.Library, provider: str | os.PathLike[str] | None) -> None:
    if provider is not None and load(provider) is not library:
        raise ValueError(
            f"provider: the communicator belongs to {library.path}, not to {load(provider).path}"
        )
