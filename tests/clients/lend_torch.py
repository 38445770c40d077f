"""pynccl borrows the communicator of a torch backend with _comm_ptr(), like torch's nccl, with
hostnccl as libnccl.so.2. The backend is torch's fake backend; CuPy creates the communicator.

Arguments: rank, number of ranks, file for the id.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import torch
from cupy.cuda import nccl as cupy_nccl
from meet import refused, share
from torch._C._distributed_c10d import FakeProcessGroup

from pynccl import nccl

rank, nranks = int(sys.argv[1]), int(sys.argv[2])
own = pickle.dumps(cupy_nccl.get_unique_id()) if rank == 0 else None
unique_id = pickle.loads(share(own, sys.argv[3]))
owner = cupy_nccl.NcclCommunicator(nranks, unique_id, rank)


handle = 0
backend_class: Any = FakeProcessGroup
backend_class._comm_ptr = lambda self: handle
backend = backend_class._create_internal(rank, nranks)
refused(lambda: nccl.Communicator.borrow(backend), ValueError, "closed or not created yet")
handle = owner.comm
with nccl.Communicator.borrow(backend) as comm:
    tensor = torch.full((1000,), rank + 1.0)
    comm.all_reduce(tensor)
    assert (tensor == 3).all()
comm = nccl.Communicator.borrow(backend)
handle = 0
refused(lambda: comm.all_reduce(tensor), ValueError, "its owner has closed it")
owner.destroy()
print("done")
