"""torch's own classes and functions, re-exported under the same names."""

from torch._C._distributed_c10d import (
    DebugLevel,
    FileStore,
    HashStore,
    TCPStore,
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)
from torch.distributed.distributed_c10d import (
    PrefixStore,
    Store,
    get_node_local_rank,
    is_torchelastic_launched,
)
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

__all__ = [
    "DebugLevel",
    "FileStore",
    "HashStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "get_debug_level",
    "get_node_local_rank",
    "is_torchelastic_launched",
    "register_rendezvous_handler",
    "rendezvous",
    "set_debug_level",
    "set_debug_level_from_env",
]
