"""The communicators of process groups, shared by the torch.distributed mirror and backend."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence

import torch
from torch.distributed import DistNetworkError

from pynccl import _C, nccl
from pynccl._C import Communicator, Config
from pynccl._internal.rendezvous import Rendezvous

__all__ = ["connect_pair", "group_config", "provider_of", "shrunk", "unique_ids"]


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


def provider_of(device: torch.device) -> str:
    """Return the provider for tensors on a device."""
    return "host" if device.type == "cpu" else "cuda"


def unique_ids(device: torch.device, count: int) -> bytes:
    """Return new unique ids for communicators on a device, concatenated."""
    provider = provider_of(device)
    return b"".join(bytes(nccl.get_unique_id(provider)) for _ in range(count))


def connect_pair(
    rendezvous: Rendezvous,
    peer: int,
    device: torch.device,
    timeout: float,
    *,
    create: Callable[[bytes, int], Communicator],
    known: bytes = b"",
) -> dict[bool, Communicator]:
    """Create the communicators of both directions between this rank and another one.

    Both ranks call it, because the first operation of each may be a send.

    Args:
        rendezvous: the exchanges of the group.
        peer: the other rank.
        device: the device of the communicators.
        timeout: the time limit in seconds of the exchange and of operations; 0 is no limit.
        create: creates a communicator of two ranks from a unique id and this rank in it.
        known: two unique ids if the ranks know them already. The store is then not required, which
            disappears with the rank that hosts it.

    Returns:
        The communicators, keyed by whether this rank sends on them.

    Raises:
        NcclError: NCCL failed. See also Rendezvous.
    """
    low, high = sorted((rendezvous.rank, peer))
    name = f"{device.type}/send and receive of {low} and {high}"
    try:
        ids = rendezvous.broadcast(
            name, (low, high), lambda: known or unique_ids(device, 2), timeout
        )
    except DistNetworkError:
        if not known:
            raise
        rendezvous.check_present(peer, name)
        ids = known
    half = len(ids) // 2  # the first id is for the direction in which the lower rank sends
    is_low = rendezvous.rank == low
    with nccl.group():
        comms = {
            sends: create(unique_id, int(not is_low))
            for sends, unique_id in ((is_low, ids[:half]), (not is_low, ids[half:]))
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
    memory = torch.empty(1, dtype=torch.uint8, device=device)
    torch.cuda.current_stream(device).synchronize()
    return memory


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
        The new communicator, or None if NCCL lacks ncclCommShrink, the communicator was closed
        after a timeout, or NCCL's network may have noticed that a rank died, after which NCCL
        refuses to shrink. The ranks then need a new unique id.
    """
    if comm.closed:
        return None
    functions = comm.library.functions()
    if aborts and comm.provider == "cuda":
        if functions["ncclCommRevoke"][1]:
            _C.begin_recovery(comm)
        else:
            comm.abort()
        return None
    if not functions["ncclCommShrink"][1]:
        return None
    return comm.shrink(excluded, abort=aborts, config=config)
