"""lend(): provides a pynccl communicator to torch's symmetric memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from pynccl import nccl
from pynccl._internal import borrowing

__all__ = ["lend"]


def lend(comm: nccl.Communicator, group: dist.ProcessGroup | None = None) -> Any:  # noqa: ANN401
    """Make torch's symmetric memory use a communicator for a process group.

    Calls torch's ``register_external_nccl_comm``. torch stores the handle without owning it; a
    later registration for the same group and device replaces this one. Not collective.

    Args:
        comm: a communicator of the group's ranks, in the same order, over torch's libnccl.so.2.
        group: the process group; None is the default group.

    Returns:
        torch's NcclCommRegistration. It keeps ``comm`` alive but not open: call ``unregister()``,
        or exit it as a context manager, before ``comm.close()``.

    Raises:
        RuntimeError: torch lacks the function, which requires torch 2.13 with CUDA.
        TypeError: ``comm`` is not a Communicator.
        ValueError: ``comm`` is closed, belongs to another library or has other ranks.
    """
    if not isinstance(comm, nccl.Communicator):
        raise TypeError(f"comm: expected a Communicator, got {type(comm).__name__}")
    if not hasattr(_distributed_c10d, "_register_external_nccl_comm"):
        raise RuntimeError(
            f"lend() needs torch 2.13 or newer with CUDA; torch {torch.__version__} does not "
            "accept external communicators"
        )
    from torch.distributed._symmetric_memory._nccl import register_external_nccl_comm

    if comm.closed:
        raise ValueError("comm: the communicator is closed")
    found = group or dist.group.WORLD
    if found is None:
        raise ValueError("group: torch's default group is not initialized; pass a group")
    torchs = borrowing.loaded()
    if comm.library is not torchs:
        raise ValueError(f"comm: uses {comm.library.path}, but torch uses {torchs.path}")
    if (comm.rank, comm.nranks) != (found.rank(), found.size()):
        raise ValueError(
            f"comm: this process is rank {comm.rank} of {comm.nranks}, but rank {found.rank()} of "
            f"{found.size()} in the group"
        )
    device = torch.device("cuda", comm.device)
    return register_external_nccl_comm(found.group_name, comm.handle, device, comm)
