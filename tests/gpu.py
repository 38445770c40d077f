"""Whether the cuda provider can be tested here, and how several ranks share one GPU."""

from __future__ import annotations

import functools

from pynccl import libraries, nccl
from pynccl.errors import DriverError, LibraryNotFoundError


@functools.cache
def count() -> int:
    """How many GPUs there are."""
    return len(libraries.load("cuda").device_names())


@functools.cache
def missing() -> str:
    """Why there is no test on GPUs; empty where there is."""
    try:
        if not count():
            return "the CUDA driver sees no GPU"
    except (LibraryNotFoundError, DriverError) as error:
        return f"no GPU to test on: {error}"
    import torch

    return "" if torch.cuda.is_available() else "this PyTorch has no CUDA"


def can_share(nranks: int) -> bool:
    """Whether so many ranks of one process find room on the GPUs."""
    return nranks <= count() or nccl.get_version("cuda") >= (2, 30, 0)


def environment(nranks: int, rank: int) -> dict[str, str]:
    """What a rank's process needs in its environment where ranks have to share a GPU."""
    if nranks <= count():
        return {}
    if nccl.get_version("cuda") >= (2, 30, 0):
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # An older NCCL refuses two ranks on one GPU of one host: each rank says that it is a host of
    # its own.
    return {"NCCL_HOSTID": f"pynccl-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
