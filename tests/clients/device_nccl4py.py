"""nccl4py's host API for device communication, with hostnccl as libnccl.so.2.

Arguments: rank, number of ranks, file for the id.
"""

from __future__ import annotations

import ctypes
import sys

import nccl.core as nccl4py
import numpy as np
from meet import refused, share
from nccl.bindings import nccl as bindings

rank, nranks = int(sys.argv[1]), int(sys.argv[2])
own = bytes(nccl4py.get_unique_id()) if rank == 0 else None
comm = nccl4py.Communicator.init(nranks, rank, nccl4py.UniqueId.from_bytes(share(own, sys.argv[3])))
BYTES = 8192
UINT8, SUM = 1, 0


def synchronize() -> None:
    array = np.zeros(1, np.uint8)
    bindings.all_reduce(array.ctypes.data, array.ctypes.data, 1, UINT8, SUM, comm._comm, 0)


properties = comm.properties
assert (properties.rank, properties.n_ranks, properties.n_lsa_teams) == (rank, nranks, 1)
assert properties.device_api_support
assert properties.host_rma_support
assert not properties.multimem_support
assert properties.comm_hash != 0
assert properties.dev_comm_runtime_version_size == 248

assert comm.team_world == comm.team_lsa == nccl4py.NCCLTeam(nranks, rank, 1)
assert comm.team_rail == nccl4py.NCCLTeam(1, 0, nranks)

# Each rank sees the memory of the others in a window.
memory = bindings.mem_alloc(BYTES)
ctypes.memset(memory, rank + 1, BYTES)
window = nccl4py.RegisteredWindowHandle(comm._comm, memory, BYTES)
synchronize()
for peer in range(nranks):
    pointer = window.get_peer_device_pointer(peer, 100)
    assert pointer is not None
    assert pointer == window.get_lsa_device_pointer(peer, 100)
    assert ctypes.c_uint8.from_address(pointer).value == peer + 1
assert window.get_lsa_multimem_device_pointer() is None
refused(lambda: window.get_peer_device_pointer(nranks), Exception, "invalid argument")

barriers = nccl4py.LsaBarrierRequirement(comm.team_lsa, 5)
exchange = nccl4py.LLA2ARequirement(n_blocks=2, max_elements=3, max_element_size=12)
device = comm.create_dev_comm(
    nccl4py.NCCLDevCommRequirements(lsa_barrier_count=4, resources=(barriers, exchange))
)
first, second = device.resource_handles
assert (device.dev_comm.rank, device.dev_comm.n_ranks) == (rank, nranks)
assert (device.dev_comm.lsa_rank, device.dev_comm.lsa_size) == (rank, nranks)
assert (first.n_barriers, second.n_slots) == (5, 6)
assert 0 < first.buf_handle < second.buf_handle
device.close()
refused(
    lambda: comm.create_dev_comm(nccl4py.NCCLDevCommRequirements(lsa_multimem=True)),
    Exception,
    "invalid argument",
)
refused(
    lambda: comm.create_dev_comm(nccl4py.NCCLDevCommRequirements(rail_gin_barrier_count=1)),
    Exception,
    "invalid argument",
)
comm.create_dev_comm()  # is closed with its communicator
synchronize()
window.close()
comm.destroy()
bindings.mem_free(memory)
print("done")
