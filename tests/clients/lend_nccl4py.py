"""nccl4py and pynccl lend each other communicators, with hostnccl as libnccl.so.2.

Arguments: rank, number of ranks, file for the id.
"""

from __future__ import annotations

import functools
import gc
import sys

import nccl.core as nccl4py
import numpy as np
from meet import refused, share
from nccl.bindings import nccl as bindings

from pynccl import libraries, nccl

rank, nranks = int(sys.argv[1]), int(sys.argv[2])
own = bytes(nccl4py.get_unique_id()) if rank == 0 else None
data = share(own, sys.argv[3])
owner = nccl4py.Communicator.init(nranks, rank, nccl4py.UniqueId.from_bytes(data))
FLOAT32, SUM = 7, 0


def sum_by_nccl4py(comm: nccl4py.Communicator) -> None:
    array = np.full(1000, rank + 1, np.float32)
    address = array.ctypes.data
    bindings.all_reduce(address, address, array.size, FLOAT32, SUM, comm._comm, 0)
    assert (array == 3).all()


def sum_by_pynccl(comm: nccl.Communicator) -> None:
    array = np.full(1000, rank + 1, np.float32)
    comm.all_reduce(array)
    assert (array == 3).all()


# Communicators that pynccl borrows.
borrowed = nccl.Communicator.borrow(owner)
assert (borrowed.rank, borrowed.nranks, borrowed.borrowed) == (rank, nranks, True)
assert borrowed.library is libraries.load(libraries.hostnccl_preload())
sum_by_pynccl(borrowed)
sum_by_nccl4py(owner)
with borrowed.split(0) as child:  # type: ignore[union-attr]
    sum_by_pynccl(child)
borrowed.close()
nccl.Communicator.borrow(owner)
gc.collect()
sum_by_nccl4py(owner)
refused(lambda: nccl.Communicator.borrow(owner, provider="host"), ValueError, "provider:")
borrowed = nccl.Communicator.borrow(owner)
again = nccl.Communicator.borrow(borrowed)
unknown = nccl.Communicator.borrow(owner.ptr)
for comm in (borrowed, again, unknown):
    sum_by_pynccl(comm)
    assert not comm.closed
owner.destroy()
for comm in (borrowed, again):
    refused(functools.partial(comm.all_reduce, np.ones(1)), ValueError, "its owner has closed it")
    assert comm.closed
refused(lambda: unknown.all_reduce(np.ones(1)), nccl.NcclInvalidArgumentError, "comm")
unknown.close()
refused(lambda: nccl.Communicator.borrow(owner), ValueError, "closed or not created yet")

# Communicators that pynccl lends.
library = str(libraries.hostnccl_preload())
ids = [bytes(nccl.get_unique_id(library))] if rank == 0 else None
data = share(ids[0] if ids else None, sys.argv[3] + "2")
comm = nccl.Communicator(nranks, data, rank, provider=library)
lent = nccl4py.Communicator(ptr=comm.handle)
assert (lent.rank, lent.nranks, lent.ptr) == (rank, nranks, comm.handle)
sum_by_nccl4py(lent)
with nccl.Communicator.borrow(lent) as back:
    sum_by_pynccl(back)
del lent
gc.collect()
sum_by_pynccl(comm)
back = nccl.Communicator.borrow(nccl4py.Communicator(ptr=comm.handle))
comm.close()
assert back.closed
print("done")
