"""Groups: what the mirror and the backend of torch.distributed share."""

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
    """The configuration of a new communicator of a group.

    On GPUs wait() orders streams and returns. A program can use the data of an operation whose time
    limit ends later, so the limit ends the process unless the user has chosen another policy.

    Args:
        given: that of the group; None is NCCL's defaults. It is not changed.
        timeout: of the group in seconds; 0 is no limit.
        on_cpu: whether the communicator is of CPU memory.

    Returns:
        A copy, with a limit for the creation and a policy.
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

    Both ranks call it: the first operation of each may be a send.

    Args:
        ids: two unique ids; the first is of the direction in which the lower rank sends.
        lower: whether this is the lower rank.
        device: of the communicators.
        timeout: of their operations, in seconds; 0 is no limit.
        create: creates a communicator of two ranks from a unique id and this rank in it.

    Returns:
        The communicators, by whether this rank sends on them.

    Raises:
        NcclError: NCCL failed.
    """
    half = len(ids) // 2
    with nccl.group():
        made = {
            sends: create(unique_id, int(not lower))
            for sends, unique_id in ((lower, ids[:half]), (not lower, ids[half:]))
        }
    for comm in made.values():
        comm.timeout = timeout or None
    if device.type != "cpu":  # hostnccl connects ranks when it creates a communicator
        _exchange_byte(made, device)
    return made


def _exchange_byte(comms: dict[bool, Communicator], device: torch.device) -> None:
    """Send a byte in both directions between two ranks.

    NCCL connects a direction in the calls of its first message, each of which waits for the other
    rank's call. Without this, two ranks that both send before they receive would wait forever.
    """
    import torch

    memory = torch.empty(2, dtype=torch.uint8, device=device)
    stream = nccl.Stream("cuda", device=device.index)
    with nccl.group():
        for sends, comm in comms.items():
            if sends:
                comm.send(memory[:1], 1 - comm.rank, stream=stream)
            else:
                comm.recv(memory[1:], 1 - comm.rank, stream=stream)
    stream.synchronize()


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
        uuid: of the reconfiguration.
        handles: of the ranks. A list has them in the order of the new ranks; a set is sorted.
        hints: none are known.
        own: this rank's handle.
        used: each uuid so far.
        decode: raises TypeError or ValueError for a text that is no handle.

    Returns:
        The handles in the order of the new ranks.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the uuid was used before, a handle is wrong or given twice, the own one is not
            among them, or there are hints.
    """
    if isinstance(uuid, bool) or not isinstance(uuid, int):
        raise TypeError(f"uuid: expected an integer, got {uuid!r}")
    if uuid in used:
        raise ValueError(f"uuid: {uuid} was used before; each reconfiguration needs another one")
    if hints:
        raise ValueError(f"hints: pynccl knows none, got {hints!r}")
    if not isinstance(handles, (list, set, frozenset)):
        raise TypeError(f"handles: expected a list or a set, got {type(handles).__name__}")
    for handle in handles:
        if not isinstance(handle, str):
            raise TypeError(f"handles: expected texts, got {handle!r}")
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
    """Make a communicator without some ranks, where that is possible (ncclCommShrink).

    Args:
        comm: the communicator.
        excluded: the ranks.
        aborts: whether what is under way on the communicator is aborted first.
        config: of the new one; None inherits.

    Returns:
        The new communicator; None where NCCL is older than ncclCommShrink, or the communicator was
        ended after a timeout. The ranks need a new id then.
    """
    _, can_shrink = comm.library.functions()["ncclCommShrink"]
    if comm.closed or not can_shrink:
        return None
    return comm.shrink(excluded, abort=aborts, config=config)
