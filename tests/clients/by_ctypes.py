"""A client of NCCL without pynccl, which calls libnccl.so.2 through ctypes, like vLLM's wrapper.

Arguments: rank, number of ranks, file for the id.
"""

from __future__ import annotations

import ctypes
import sys

from meet import share

FLOAT32, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def check(result: int) -> None:
    if result != 0:
        raise RuntimeError(nccl.ncclGetErrorString(result).decode())


rank, nranks = int(sys.argv[1]), int(sys.argv[2])
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetErrorString.restype = ctypes.c_char_p
version, own, comm = ctypes.c_int(), UniqueId(), ctypes.c_void_p()
check(nccl.ncclGetVersion(ctypes.byref(version)))
if rank == 0:
    check(nccl.ncclGetUniqueId(ctypes.byref(own)))
data = share(ctypes.string_at(ctypes.byref(own), 128) if rank == 0 else None, sys.argv[3])
unique_id = UniqueId.from_buffer_copy(data)
check(nccl.ncclCommInitRank(ctypes.byref(comm), nranks, unique_id, rank))

count = 100_003
values = (ctypes.c_float * count)(*[float(rank + 1)] * count)
address = ctypes.byref(values)
stream = ctypes.c_void_p(0)
check(nccl.ncclAllReduce(address, address, ctypes.c_size_t(count), FLOAT32, SUM, comm, stream))
check(nccl.ncclGroupStart())
received = (ctypes.c_float * count)()
after, before = (rank + 1) % nranks, (rank - 1) % nranks
check(nccl.ncclSend(address, ctypes.c_size_t(count), FLOAT32, after, comm, stream))
check(nccl.ncclRecv(ctypes.byref(received), ctypes.c_size_t(count), FLOAT32, before, comm, stream))
check(nccl.ncclGroupEnd())
check(nccl.ncclCommDestroy(comm))
print(version.value, {*values}, {*received})
