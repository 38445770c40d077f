"""CuPy's NCCL bindings on NumPy arrays.

Arguments: rank, number of ranks, file for the id.
"""

from __future__ import annotations

import pickle
import sys

import numpy as np
from cupy.cuda import nccl
from meet import share

rank, nranks = int(sys.argv[1]), int(sys.argv[2])
own = pickle.dumps(nccl.get_unique_id()) if rank == 0 else None
unique_id = pickle.loads(share(own, sys.argv[3]))
comm = nccl.NcclCommunicator(nranks, unique_id, rank)
assert (comm.rank_id(), comm.size()) == (rank, nranks)

array = np.full(100_003, rank + 1, np.float32)
out = np.zeros_like(array)
size, address, target = array.size, array.ctypes.data, out.ctypes.data
comm.allReduce(address, target, size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
reduced = {*out.tolist()}
comm.broadcast(address, target, size, nccl.NCCL_FLOAT32, 1, 0)
broadcast = {*out.tolist()}
nccl.groupStart()
comm.send(address, size, nccl.NCCL_FLOAT32, (rank + 1) % nranks, 0)
comm.recv(target, size, nccl.NCCL_FLOAT32, (rank - 1) % nranks, 0)
nccl.groupEnd()
ring = {*out.tolist()}
comm.destroy()
print(reduced, broadcast, ring)
