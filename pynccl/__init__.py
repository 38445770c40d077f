"""pynccl: NCCL called directly from Python, on GPUs and on CPUs.

``import pynccl as dist`` replaces ``import torch.distributed as dist``, over NCCL or, on CPUs, over
hostnccl. ``pynccl.nccl`` provides objects (communicators, streams, groups), ``pynccl.raw`` every
function of nccl.h under its own name. Neither requires torch, which is imported on the first use of
a torch.distributed name.
"""

# ruff: noqa: F403, F405 - for type checkers only

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pynccl import memory, nccl, ops, raw
    from pynccl._C import __version__
    from pynccl.mirror.api.public import *
    from pynccl.mirror.base.operators import _make_nccl_premul_sum
    from pynccl.mirror.world import _get_default_group, _rank_not_in_group

if importlib.util.find_spec("pynccl._C") is None:
    raise ImportError(
        f"{os.path.dirname(__file__)} has no pynccl._C compiled for Python "
        f"{sys.version_info.major}.{sys.version_info.minor}. In the source tree, start Python in "
        "another folder, where the installed package is found, or compile in place: "
        "pip install -e ."
    )

# The only list of the public names.
__all__ = [
    "SHRINK_ABORT",
    "SHRINK_DEFAULT",
    "Backend",
    "BackendConfig",
    "DebugLevel",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "GroupMember",
    "HashStore",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "ReduceOp",
    "Store",
    "TCPStore",
    "Work",
    "__version__",
    "_get_default_group",
    "_make_nccl_premul_sum",
    "_rank_not_in_group",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "breakpoint",
    "broadcast",
    "broadcast_object_list",
    "default_pg_timeout",
    "destroy_process_group",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_backend_impl",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_include",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "memory",
    "monitored_barrier",
    "nccl",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "ops",
    "raw",
    "reconfigure",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "register_rendezvous_handler",
    "rendezvous",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "set_timeout",
    "shrink_group",
    "split_group",
    "supports_complex",
]

_MODULES = ("memory", "nccl", "ops", "raw")
# The names that do not require torch.
OWN_NAMES = (*_MODULES, "__version__", "get_include")


def get_include() -> str:
    """Return the directory of the C++ header ``pynccl/pynccl.h``, for an extension's include path.

    With this header, a C++ or CUDA extension accepts a :class:`pynccl.nccl.Communicator` and calls
    NCCL through the library that pynccl has loaded, without linking against one. See
    docs/extending.md.

    Returns:
        The absolute path of the directory.
    """
    return os.path.join(os.path.dirname(__file__), "include")


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "__version__":
        return importlib.import_module("pynccl._C").__version__
    if name in _MODULES:
        return importlib.import_module(f"pynccl.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'pynccl' has no attribute {name!r}")
    if importlib.util.find_spec("torch") is None:
        raise ImportError(
            f"pynccl.{name} mirrors torch.distributed and needs torch, which is not installed; "
            "pynccl.nccl and pynccl.raw work without it"
        )
    # The names become attributes of this module, so later look-ups bypass this function.
    mirror = importlib.import_module("pynccl.mirror.api.public")
    globals().update({one: getattr(mirror, one) for one in __all__ if one not in OWN_NAMES})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
