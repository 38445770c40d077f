"""Times the all_reduce kernels over <pynccl/device.h> beside hostnccl's own all_reduce, on CPUs.

    python -m benchmarks.device --ranks 2,4

The loops are in C++; the calls alternate, so that a disturbance of the machine meets all of them.
A time is the maximum over the ranks, of one call; of the passes the least and the median are given.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.kernels import compile_for_cpus
from benchmarks.options import positive, tuple_of
from pynccl import nccl
from pynccl.testing import Rank, launch

__all__ = ["main"]

_SIZES = (4, 1024, 4096, 16384, 65536)  # bytes
_CALLS = ("ncclAllReduce", "one_shot", "buffered")
_CAPACITY = 65536  # bytes of scratch memory for each half


class _Arguments(ctypes.Structure):
    """AllReduceArguments."""

    _fields_ = [
        ("comm", ctypes.c_uint64 * 31),
        ("window", ctypes.c_void_p),
        ("offset", ctypes.c_size_t),
        ("recv", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    ]


class _Buffered(ctypes.Structure):
    """AllReduceBufferedArguments."""

    _fields_ = [
        ("comm", ctypes.c_uint64 * 31),
        ("window", ctypes.c_void_p),
        ("offset", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    ]


def _measure(rank: Rank, module: str, passes: int, seconds: float) -> list[list[list[float]]]:
    """For each size and call, the seconds of one call in each pass."""
    loops, comm = ctypes.CDLL(module), rank.comm
    loops.loop_kernel.restype = loops.loop_nccl.restype = ctypes.c_double
    all_reduce = ctypes.CDLL(comm.library.path).ncclAllReduce
    buffer = comm.symmetric_empty(3 * _CAPACITY, "uint8")
    device_comm = comm.device_comm(lsa_barriers=1)
    send = np.from_dlpack(buffer)[:_CAPACITY].view(np.float32)
    send[:] = np.arange(send.size) % 7 + rank.rank
    recv = np.empty_like(send)
    content = (ctypes.c_uint64 * 31).from_buffer_copy(bytes(device_comm))
    one, window = np.zeros(1), buffer.window.handle

    def run(call: str, count: int, n: int) -> float:
        one_shot = _Arguments(content, window, 0, recv.ctypes.data, count)
        buffered = _Buffered(
            content, window, _CAPACITY, _CAPACITY // 4, send.ctypes.data, recv.ctypes.data, count
        )
        comm.all_reduce(one)
        if call == "ncclAllReduce":
            arguments = [send.ctypes.data, recv.ctypes.data, count, comm.handle]
            values = [ctypes.c_void_p(v) for v in arguments]
            took = loops.loop_nccl(all_reduce, *values, ctypes.c_long(n))
        else:
            kernel = getattr(
                loops, f"all_reduce_{'buffered_' if call == 'buffered' else ''}float32"
            )
            struct = buffered if call == "buffered" else one_shot
            took = loops.loop_kernel(kernel, ctypes.byref(struct), ctypes.c_long(n))
        expected = np.arange(count) % 7 * comm.nranks + comm.nranks * (comm.nranks - 1) // 2
        if not (recv[:count] == expected).all():
            raise RuntimeError(f"{call} of {count} elements: wrong result on rank {rank.rank}")
        result = np.array([took / n])
        comm.all_reduce(result, nccl.MAX)
        return float(result[0])

    times = []
    for size in _SIZES:
        count = size // 4
        n = {call: max(1, int(seconds / run(call, count, 20))) for call in _CALLS}
        rounds = [[run(call, count, n[call]) for call in _CALLS] for _ in range(passes)]
        times.append([list(column) for column in zip(*rounds, strict=True)])
    device_comm.close()
    buffer.close()
    return times


def _table(nranks: int, times: list[list[list[float]]]) -> str:
    lines = [f"{nranks} ranks; microseconds, least and median; and their ratio to ncclAllReduce"]
    for size, calls in zip(_SIZES, times, strict=True):
        cells = []
        for call, samples in zip(_CALLS, calls, strict=True):
            least, median = min(samples), statistics.median(samples)
            cell = f"{call} {least * 1e6:.2f} {median * 1e6:.2f}"
            if call != _CALLS[0]:
                cell += f" ({least / min(calls[0]):.2f} {median / statistics.median(calls[0]):.2f})"
            cells.append(cell)
        lines.append(f"{size:6} B  " + "   ".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ranks", type=tuple_of(positive), default=(2, 4), help="world sizes (2,4)"
    )
    parser.add_argument("--passes", type=int, default=11)
    parser.add_argument("--budget", type=float, default=0.05, help="seconds of one sample")
    arguments = parser.parse_args()
    where = machine.inspect("host")
    print(f"{where.cpu}, {where.cores} cores; {where.versions}")
    with tempfile.TemporaryDirectory() as folder:
        loops = Path(__file__).with_name("device_loop.cpp")
        module = str(compile_for_cpus(Path(folder, "loops.so"), f'#include "{loops}"\n'))
        for nranks in arguments.ranks:
            results = launch(
                nranks, _measure, (module, arguments.passes, arguments.budget), timeout=300
            )
            print(_table(nranks, results[0]))


if __name__ == "__main__":
    main()
