"""Proves that kernels of numba-cuda that communicate compile for real GPUs without one, with
accesses of system scope.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numba import cuda, types

from pynccl.device import numba_cuda as peers


def _kernel(pointers, signals, rank, nranks, out):
    """Every function."""
    peers.barrier(signals, rank, nranks, cuda.blockIdx.x, 4)
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for peer in range(nranks):
            total += peers.pointer(peers.peer(pointers, peer), np.float32)[i]
        peers.pointer(peers.peer(pointers, rank), np.float32)[i] = total
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        peers.signal(signals, 0, 1, 2)
        peers.wait(signals, rank, 2, 1)
        peers.store_release(peers.word(signals, rank, 2), 3)
        out[0] = peers.load_acquire(peers.word(signals, rank, 3))
        peers.fetch_add(peers.word(signals, rank, 3), 1)


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_kernels_compile(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    # Device functions are compiled for the current device, which does not exist.
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: device)
    kinds = (types.int64[::1], types.uint64[::1], types.int32, types.int32, types.float32[::1])
    ptx, _ = cuda.compile(_kernel, kinds, cc=capability, device=False, abi="numba", output="ptx")
    assert f".target sm_{capability[0]}{capability[1]}" in ptx
    for access in ("ld.acquire", "st.release", "atom.acq_rel"):
        assert re.search(rf"{re.escape(access)}\.sys\.global", ptx), access
