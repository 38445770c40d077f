"""torch.distributed's names over pynccl; ``import pynccl as dist`` gives them.

Each room has one subject: the groups of this process (registry), how they are made (initialize,
groups, regroup), what a group is (process_group, channel, pair), the operations (collectives,
lists, exchange, p2p, objects, barriers, coalescing), and what they share (checks, operators, work,
errors).
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch._C._distributed_c10d import (
    DebugLevel,
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch.distributed.distributed_c10d import GroupName

from pynccl import _C
from pynccl.mirror.backend import (
    Backend,
    BackendConfig,
    get_default_backend_for_device,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
)
from pynccl.mirror.barriers import barrier, breakpoint, monitored_barrier
from pynccl.mirror.coalescing import _coalescing_manager, _CoalescingManager
from pynccl.mirror.collectives import (
    _all_gather_base,
    _reduce_scatter_base,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    broadcast,
    reduce,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from pynccl.mirror.errors import (
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    QueueEmptyError,
)
from pynccl.mirror.exchange import all_to_all, all_to_all_single
from pynccl.mirror.groups import new_group, new_subgroups, new_subgroups_by_enumeration
from pynccl.mirror.initialize import (
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
    default_pg_timeout,
    get_node_local_rank,
    init_process_group,
    is_torchelastic_launched,
    register_rendezvous_handler,
    rendezvous,
)
from pynccl.mirror.lists import (
    all_gather,
    all_gather_coalesced,
    all_reduce_coalesced,
    gather,
    reduce_scatter,
    scatter,
)
from pynccl.mirror.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from pynccl.mirror.operators import (
    OPERATORS,
    ReduceOp,
    _make_nccl_premul_sum,
    reduce_op,
    supports_complex,
)
from pynccl.mirror.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import (
    GroupMember,
    _get_default_group,
    _rank_not_in_group,
    destroy_process_group,
    get_backend,
    get_backend_config,
    get_global_rank,
    get_group_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_initialized,
)
from pynccl.mirror.regroup import SHRINK_ABORT, SHRINK_DEFAULT, shrink_group, split_group
from pynccl.mirror.work import Work

__all__ = [
    "SHRINK_ABORT",
    "SHRINK_DEFAULT",
    "AllToAllOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "Backend",
    "BackendConfig",
    "BarrierOptions",
    "BroadcastOptions",
    "DebugLevel",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "GatherOptions",
    "GroupMember",
    "GroupName",
    "HashStore",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "ReduceOp",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Store",
    "TCPStore",
    "Work",
    "_CoalescingManager",
    "_all_gather_base",
    "_coalescing_manager",
    "_get_default_group",
    "_make_nccl_premul_sum",
    "_rank_not_in_group",
    "_reduce_scatter_base",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
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
    "gather_object",
    "get_backend",
    "get_backend_config",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
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
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "record_comm",
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
    "shrink_group",
    "split_group",
    "supports_complex",
]


_C.set_names(torch.Tensor, Work, ProcessGroup, list(OPERATORS.items()))


@contextmanager
def record_comm(name: str):
    """Show the operations in the context under a name in torch's profiler.

    Args:
        name: of the range.
    """
    with torch.profiler.record_function(name):
        yield
