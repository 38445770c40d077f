"""Group membership, shared by the torch.distributed mirror and backend."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from pynccl import nccl
from pynccl._C import Config

if TYPE_CHECKING:
    import torch

    from pynccl._C import Communicator

__all__ = ["connect_pair", "group_config", "ordered_members", "shrunk"]


def group_config(given: Config | None, *, timeout: float, on_cpu: bool) -> Config:
    """Return the configuration of a new communicator of a group.

    On GPUs, wait() only orders streams. A program can use the data of an operation that times out
    later, so a timeout ends the process unless the user has chosen another policy.

    Args:
        given: the group's configuration, which is not modified; None is NCCL's defaults.
        timeout: the group's timeout in seconds; 0 is no limit.
        on_cpu: whether the communicator uses CPU memory.

    Returns:
        A copy with a time limit for initialization and a timeout policy.
    """
    config = Config() if given is None else copy.copy(given)
    if config.init_timeout is None and timeout > 0:
        config.init_timeout = timeout
    if not on_cpu and config.on_timeout is None and not os.environ.get("PYNCCL_ON_TIMEOUT"):
        config.on_timeout = "abort"
    return config


def connect_pair(
    ids: bytes,
    *,
    lower: bool,
    device: torch.device,
    timeout: float,
    create: Callable[[bytes, int], Communicator],
) -> dict[bool, Communicator]:
    """Create the communicators of both directions between two ranks.

    Both ranks call it, because the first operation of each may be a send.

    Args:
        ids: two unique ids; the first is for the direction in which the lower rank sends.
        lower: whether this is the lower rank.
        device: the device of the communicators.
        timeout: the time limit of their operations, in seconds; 0 is no limit.
        create: creates a communicator of two ranks from a unique id and this rank in it.

    Returns:
        The communicators, keyed by whether this rank sends on them.

    Raises:
        NcclError: NCCL failed.
    """
    half = len(ids) // 2
    with nccl.group():
        comms = {
            sends: create(unique_id, int(not lower))
            for sends, unique_id in ((lower, ids[:half]), (not lower, ids[half:]))
        }
    for comm in comms.values():
        comm.timeout = timeout or None  # before the exchange, which it limits as well
    if device.type != "cpu" or _connects_in_calls():
        _exchange_byte(comms, device)
    return comms


def _connects_in_calls() -> bool:
    """Whether first messages on hostnccl wait for the other rank's call: in strict mode."""
    parameters = nccl.params("host")
    return all(parameters.get(key) == "TRUE" for key in ("HOSTNCCL_STRICT", "HOSTNCCL_CONNECT"))


def _exchange_byte(comms: dict[bool, Communicator], device: torch.device) -> None:
    """Send a byte in both directions between two ranks.

    NCCL connects a direction during its first message, which blocks until both ranks call it.
    Without this exchange, two ranks that both send before they receive would deadlock.
    """
    stream = None if device.type == "cpu" else nccl.Stream("cuda", device=device.index)
    memory = {sends: _byte_for(comm, device) for sends, comm in comms.items()}
    with nccl.group():
        for sends, comm in comms.items():
            (comm.send if sends else comm.recv)(memory[sends], 1 - comm.rank, stream=stream)
    if stream is not None:
        stream.synchronize()


def _byte_for(comm: Communicator, device: torch.device) -> nccl.Buffer | torch.Tensor:
    """Return one byte of memory that no earlier work uses.

    Memory from torch may still be in use by earlier work on its stream. Waiting for that work could
    deadlock, since it may wait for the other rank. It is unavoidable with NCCL 2.18, which lacks
    ncclMemAlloc.
    """
    if comm.library.functions()["ncclMemAlloc"][1]:
        return comm.mem_alloc(1)
    import torch

    memory = torch.empty(1, dtype=torch.uint8, device=device)
    torch.cuda.current_stream(device).synchronize()
    return memory


def ordered_members(
    uuid: object,
    handles: object,
    hints: object,
    *,
    own: str,
    used: Container[int],
    decode: Callable[[str], object],
) -> list[str]:
    """Check the arguments of a reconfiguration by handles.

    Args:
        uuid: identifies the reconfiguration.
        handles: the handles of the ranks: a list in the order of the new ranks, or a set, which is
            sorted.
        hints: must be empty; none are supported.
        own: this rank's handle.
        used: the uuids used so far.
        decode: raises TypeError or ValueError for a string that is not a handle.

    Returns:
        The handles in the order of the new ranks.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the uuid was used before, a handle is invalid or duplicated, this rank's handle
            is missing, or there are hints.
    """
    if isinstance(uuid, bool) or not isinstance(uuid, int):
        raise TypeError(f"uuid: expected an integer, got {uuid!r}")
    if uuid in used:
        raise ValueError(f"uuid: {uuid} was used before; each reconfiguration needs a new one")
    if hints:
        raise ValueError(f"hints: pynccl supports none, got {hints!r}")
    if not isinstance(handles, (list, set, frozenset)):
        raise TypeError(f"handles: expected a list or a set, got {type(handles).__name__}")
    for handle in handles:
        if not isinstance(handle, str):
            raise TypeError(f"handles: expected strings, got {handle!r}")
        try:
            decode(handle)
        except (TypeError, ValueError):
            raise ValueError(f"handles: {handle!r} is not a handle of pynccl") from None
    ordered = handles if isinstance(handles, list) else sorted(handles)
    if len(set(ordered)) != len(ordered):
        raise ValueError("handles: a handle is given twice")
    if own not in ordered:
        raise ValueError(f"handles: this rank's own is not among the {len(ordered)} given")
    return ordered


def shrunk(
    comm: Communicator, excluded: Sequence[int], *, aborts: bool, config: Config | None
) -> Communicator | None:
    """Create a communicator without some ranks, if possible (ncclCommShrink).

    Args:
        comm: the communicator.
        excluded: the ranks to exclude.
        aborts: whether to abort the communicator's pending operations first.
        config: the new communicator's configuration; None inherits.

    Returns:
        The new communicator, or None if NCCL lacks ncclCommShrink or the communicator was closed
        after a timeout. The ranks then need a new unique id.
    """
    _, can_shrink = comm.library.functions()["ncclCommShrink"]
    if comm.closed or not can_shrink:
        return None
    return comm.shrink(excluded, abort=aborts, config=config)
