"""pynccl borrows communicators of CuPy and of a torch backend, with hostnccl as libnccl.so.2.

Arguments: rank, number of ranks, file for the id.
"""

from __future__ import annotations

import gc
import importlib.util
import pickle
import sys
from typing import Any

import numpy as np
from cupy.cuda import nccl as cupy_nccl
from meet import refused, share

from pynccl import nccl

rank, nranks = int(sys.argv[1]), int(sys.argv[2])


def create(number: int) -> cupy_nccl.NcclCommunicator:
    own = pickle.dumps(cupy_nccl.get_unique_id()) if rank == 0 else None
    unique_id = pickle.loads(share(own, f"{sys.argv[3]}{number}"))
    return cupy_nccl.NcclCommunicator(nranks, unique_id, rank)


owner = create(1)


def sum_by_cupy() -> None:
    array = np.full(1000, rank + 1, np.float32)
    address = array.ctypes.data
    owner.allReduce(address, address, array.size, cupy_nccl.NCCL_FLOAT32, cupy_nccl.NCCL_SUM, 0)
    assert (array == 3).all()


def sum_by_pynccl(comm: nccl.Communicator) -> None:
    array = np.full(1000, rank + 1, np.float32)
    comm.all_reduce(array)
    assert (array == 3).all()


with nccl.Communicator.borrow(owner) as borrowed:
    assert (borrowed.rank, borrowed.nranks) == (rank, nranks)
    sum_by_pynccl(borrowed)
    sum_by_cupy()
sum_by_cupy()
nccl.Communicator.borrow(owner)
gc.collect()
sum_by_cupy()

# CuPy destroys an unreferenced communicator; the borrowed one holds a reference.
borrowed = nccl.Communicator.borrow(owner)
handle = owner.comm
del owner
gc.collect()
sum_by_pynccl(borrowed)
borrowed.close()
gc.collect()
refused(lambda: nccl.Communicator.borrow(handle), nccl.NcclInvalidArgumentError, "comm")

owner = create(2)
borrowed = nccl.Communicator.borrow(owner)
sum_by_pynccl(borrowed)
owner.destroy()
refused(lambda: borrowed.all_reduce(np.ones(1)), ValueError, "its owner has closed it")

# A backend with _comm_ptr(), like torch's nccl, which requires GPUs: torch's fake one.
if importlib.util.find_spec("torch"):
    from torch._C._distributed_c10d import FakeProcessGroup

    owner, handle = create(3), 0
    backend_class: Any = FakeProcessGroup
    backend_class._comm_ptr = lambda self: handle
    backend = backend_class._create_internal(rank, nranks)
    refused(lambda: nccl.Communicator.borrow(backend), ValueError, "closed or not created yet")
    handle = owner.comm
    with nccl.Communicator.borrow(backend) as comm:
        sum_by_pynccl(comm)
    comm = nccl.Communicator.borrow(backend)
    handle = 0
    refused(lambda: comm.all_reduce(np.ones(1)), ValueError, "its owner has closed it")
    owner.destroy()
print("done")
