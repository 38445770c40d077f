"""lend(): a communicator of pynccl for torch's symmetric memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from pynccl import nccl
from pynccl._internal import borrowing

__all__ = ["lend"]


def lend(comm: nccl.Communicator, group: dist.ProcessGroup | None = None) -> Any:  # noqa: ANN401
    """Have torch's symmetric memory use a communicator for a process group.

    torch's ``register_external_nccl_comm``. torch keeps the handle and frees nothing; a later
    registration for the same group and device replaces this one. Other ranks do not take part.

    Args:
        comm: of the ranks of the group, in the same order, over the libnccl.so.2 that torch uses.
        group: by whose name torch finds it; None is the default group.

    Returns:
        torch's NcclCommRegistration. It keeps ``comm`` alive but not open: call ``unregister()``,
        or leave it as a context manager, before ``comm.close()``.

    Raises:
        RuntimeError: this torch has no such function: it needs CUDA and torch 2.13.
        TypeError: ``comm`` is not a Communicator.
        ValueError: ``comm`` is closed, belongs to another library or has other ranks.
    """
    if not isinstance(comm, nccl.Communicator):
        raise TypeError(f"comm: expected a Communicator, got {type(comm).__name__}")
    if not hasattr(_distributed_c10d, "_register_external_nccl_comm"):
        raise RuntimeError(
            f"lend() needs torch 2.13 or newer with CUDA; torch {torch.__version__} takes no "
            "communicators of others"
        )
    from torch.distributed._symmetric_memory._nccl import register_external_nccl_comm

    if comm.closed:
        raise ValueError("comm: it is closed")
    found = group or dist.group.WORLD
    if found is None:
        raise ValueError("group: torch has no default group yet")
    torchs = borrowing.loaded()
    if comm.library is not torchs:
        raise ValueError(f"comm: it belongs to {comm.library.path}; torch uses {torchs.path}")
    if (comm.rank, comm.nranks) != (found.rank(), found.size()):
        raise ValueError(
            f"comm: it has rank {comm.rank} of {comm.nranks}, the group rank {found.rank()} of "
            f"{found.size()}"
        )
    device = torch.device("cuda", comm.device)
    return register_external_nccl_comm(found.group_name, comm.handle, device, comm)
