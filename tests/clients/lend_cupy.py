"""pynccl borrows a communicator of CuPy, with hostnccl as libnccl.so.2.

Arguments: rank, number of ranks, file for the id.
"""

from __future__ import annotations

import gc
import pickle
import sys

import numpy as np
from cupy.cuda import nccl as cupy_nccl
from meet import refused, share

from pynccl import nccl

rank, nranks = int(sys.argv[1]), int(sys.argv[2])
own = pickle.dumps(cupy_nccl.get_unique_id()) if rank == 0 else None
unique_id = pickle.loads(share(own, sys.argv[3]))
owner = cupy_nccl.NcclCommunicator(nranks, unique_id, rank)


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

own = pickle.dumps(cupy_nccl.get_unique_id()) if rank == 0 else None
unique_id = pickle.loads(share(own, sys.argv[3] + "2"))
owner = cupy_nccl.NcclCommunicator(nranks, unique_id, rank)
borrowed = nccl.Communicator.borrow(owner)
sum_by_pynccl(borrowed)
owner.destroy()
refused(lambda: borrowed.all_reduce(np.ones(1)), ValueError, "its owner has closed it")
print("done")
