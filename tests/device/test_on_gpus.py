"""Proves on GPUs that kernels that communicate give the right results: those over pynccl/device.h,
compiled by NVRTC with the headers of the loaded NCCL, also in graphs; and the examples for Triton.

Ranks may share a GPU. If NCCL then does not permit access to each other's memory, tests with
several ranks are skipped with NCCL's reason.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from benchmarks.kernels import GpuKernels
from pynccl import nccl
from pynccl.errors import LibraryNotFoundError
from tests.support import gpu
from tests.support.commands import run_python
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_FOLDER = Path(__file__).parents[2] / "examples" / "device"
_BLOCKS, _COUNT = 4, 10_000

pytestmark = [pytest.mark.gpu, pytest.mark.needs_gpu("it runs kernels that communicate")]


def _all_reduce(rank: Rank) -> str:
    """The reason why it cannot be tested, or ""."""
    import torch

    comm, nranks = rank.comm, rank.nranks
    assert rank.device is not None
    torch.cuda.set_device(rank.device)
    properties = comm.properties()
    if not properties.device_api_support:
        return "NCCL says that the communicator does not support the device API"
    if comm.team_lsa().nranks != nranks:
        return f"{nranks} ranks of which {comm.team_lsa().nranks} reach each other's memory"
    try:
        kernels = GpuKernels(rank.device)
    except LibraryNotFoundError as error:
        return str(error)
    stream = rank.stream()
    with comm.symmetric_empty(_COUNT) as buffer, comm.device_comm(lsa_barriers=_BLOCKS) as device:
        own, out = torch.from_dlpack(buffer), torch.empty(_COUNT, device=f"cuda:{rank.device}")
        argument = device.as_argument(kernels.version).tobytes()
        argument += struct.pack(
            "QQQQ", buffer.window.handle, 0, out.data_ptr(), _COUNT
        )  # window, offset, recv, count
        base = torch.arange(_COUNT, device=out.device) % 1000

        def fill(turn: int) -> torch.Tensor:
            own.copy_(base + rank.rank + turn)
            out.zero_()
            torch.cuda.synchronize()
            comm.barrier(stream=stream)  # all ranks have written
            return base * nranks + nranks * turn + nranks * (nranks - 1) // 2

        for turn in range(3):
            expected = fill(turn)
            kernels.launch("all_reduce_float32", argument, _BLOCKS, stream.handle)
            stream.synchronize()
            assert torch.equal(out, expected.float())
        with nccl.capture(stream) as graph:
            kernels.launch("all_reduce_float32", argument, _BLOCKS, stream.handle)
        for turn in range(3):
            expected = fill(turn)
            graph.launch(stream)
            stream.synchronize()
            assert torch.equal(out, expected.float())
        graph.close()
        with pytest.raises(ValueError, match="the kernel is compiled with"):
            device.as_argument("2.27.0")
    return ""


@pytest.mark.parametrize("nranks", [1, 2])
def test_all_reduce(launch: Launcher, nranks: int) -> None:
    gpu.require("cuda", "ncclDevCommCreate", "ncclCommQueryProperties")
    reasons = launch(nranks, _all_reduce, provider="cuda")
    if reasons[0]:
        pytest.skip(reasons[0])


@pytest.mark.parametrize("nranks", [1, 2])
@pytest.mark.parametrize("name", sorted(path.stem for path in _FOLDER.glob("triton_*.py")))
def test_triton(name: str, nranks: int) -> None:
    pytest.importorskip("triton")
    gpu.require("cuda", "ncclGetPeerDevicePointer")
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "PYNCCL_PROVIDER": "cuda"}
    arguments = (str(_FOLDER / f"{name}.py"), "--ranks", str(nranks))
    done = run_python(*arguments, timeout=240, **variables)
    if "cannot share the memory" in done.stderr:
        pytest.skip(done.stderr[-1000:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rank 0 of {nranks}: " in done.stdout
