"""Proves that users' C++ can take a Communicator: examples/cpp_extension is built with the header
of the package, by g++ and where there is nvcc with its kernel, and gives right results with several
ranks; that the header compiles without warnings in the oldest C++ that it supports, alone and with
nccl.h; and that a closed communicator is an exception there.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pynccl
from pynccl import nccl
from pynccl.errors import NcclInvalidUsageError
from tests.support import gpu
from tests.support.blocking import in_threads
from tests.support.capsule import Capsule, issue_operations, open_capsule
from tests.support.commands import ROOT, python_output, run_command
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_EXAMPLE = ROOT / "examples" / "cpp_extension"
_SCRATCH = ROOT / "build" / "cpp_extension"

pytest.importorskip("pybind11")
pytest.importorskip("setuptools")


def _build(nvcc: str, architecture: str = "") -> Path:
    """Build the example like a user, in another folder; return the module's path."""
    folder = _SCRATCH / f"{sys.implementation.cache_tag}-{'cuda' if nvcc else 'plain'}"
    environment = {**os.environ, "NVCC": nvcc, "PYTHONPATH": os.pathsep.join(sys.path)}
    if architecture:
        environment["NVCC_ARCH"] = architecture
    command = [sys.executable, "setup.py", "-q", "build_ext", f"--build-lib={folder}"]
    command.append(f"--build-temp={folder / 'objects'}")
    done = run_command(command, _EXAMPLE, environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("fused.*.so")
    return built


@pytest.fixture(scope="module", params=["plain", pytest.param("nvcc", marks=pytest.mark.gpu)])
def extension(request: pytest.FixtureRequest) -> Path:
    nvcc = ""
    if request.param == "nvcc":
        nvcc = shutil.which("nvcc") or ""
        if not nvcc:
            pytest.skip("there is no nvcc; test_kernels.py compiles its kernel with NVRTC")
        if "CUDA_DOUBLE_LIBRARIES" in os.environ and not FULL:
            pytest.skip("what nvcc compiles does not run on the double: `make test-all`")
    return _build(nvcc, architecture="" if not nvcc or gpu.missing() else "native")


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fused", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _links(path: Path) -> str:
    return subprocess.run(
        ["readelf", "-d", str(path)], capture_output=True, text=True, check=True
    ).stdout


def _tensors(rank: Rank) -> list[Any]:
    import torch

    values = np.arange(1000, dtype=np.float32)
    if rank.device is not None:
        return [torch.from_numpy(values).cuda(rank.device)]
    return [values.copy(), torch.from_numpy(values.copy())]


_KERNEL = pytest.mark.needs_gpu("it runs a kernel that nvcc has compiled")


@pytest.mark.parametrize(
    ("extension", "provider"),
    [
        ("plain", "host"),
        pytest.param("nvcc", "host", marks=pytest.mark.gpu),
        pytest.param("nvcc", "cuda", marks=[pytest.mark.gpu, _KERNEL]),
    ],
    indirect=True,
)
@on_ranks(2, by="provider")
def test_extension_with_ranks(rank: Rank, extension: Path) -> None:
    fused = _load(str(extension))
    expected = np.arange(1000, dtype=np.float32) * sum(0.5 * (r + 1) for r in range(rank.nranks))
    for tensor in _tensors(rank):
        stream = 0
        if rank.device is not None:
            import torch

            stream = torch.cuda.current_stream(rank.device).cuda_stream
        fused.fused_scale_all_reduce(rank.comm, tensor, 0.5 * (rank.rank + 1), stream=stream)
        got = tensor if isinstance(tensor, np.ndarray) else tensor.cpu().numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    # On a stream: enqueued in order, and done when the stream is.
    tensor, queue = _tensors(rank)[-1], rank.stream()
    if rank.device is not None:
        torch.cuda.synchronize(rank.device)
    for _ in range(3):
        fused.fused_scale_all_reduce(rank.comm, tensor, 1 / rank.nranks, stream=queue.handle)
    rank.comm.all_reduce(tensor, stream=queue)
    queue.synchronize()
    expected = np.arange(1000, dtype=np.float32) * rank.nranks
    np.testing.assert_allclose(tensor.cpu().numpy(), expected, rtol=1e-6)


def test_extension_links_no_nccl(extension: Path) -> None:
    needed = re.findall(r"NEEDED.*\[(.+)\]", _links(extension))
    assert needed
    assert not [name for name in needed if "nccl" in name or "cudart" in name]


def _communicator() -> nccl.Communicator:
    return nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host")


def test_mistakes_are_exceptions(extension: Path) -> None:
    fused = _load(str(extension))
    array = np.ones(3, np.float32)
    with _communicator() as comm:
        with pytest.raises(TypeError, match=r"pynccl\.nccl\.Communicator"):
            fused.fused_scale_all_reduce(object(), array, 1.0)
        with pytest.raises(TypeError, match="expected float32, got <f8"):
            fused.fused_scale_all_reduce(comm, np.ones(3), 1.0)
        with pytest.raises(ValueError, match="not contiguous"):
            fused.fused_scale_all_reduce(comm, np.ones((4, 4), np.float32)[:, 1], 1.0)
        fused.fused_scale_all_reduce(comm, array, 2.0)
        assert (array == 2).all()
    with pytest.raises(ValueError, match="closed"):
        fused.fused_scale_all_reduce(comm, array, 1.0)


def _two_threads(run: Callable[[nccl.Communicator], object]) -> list[object]:
    """The results of a function on two ranks, which are threads."""
    unique_id = nccl.get_unique_id("host")

    def start(rank: int) -> object:
        with nccl.Communicator(2, unique_id, rank, provider="host") as comm:
            return run(comm)

    return in_threads(partial(start, 0), partial(start, 1))


def test_nccl_errors_are_pynccl_exceptions(extension: Path) -> None:
    """Each rank's call waits for the other's: a call that keeps the GIL would hang."""
    fused = _load(str(extension))

    def run(comm: nccl.Communicator) -> tuple[str, int]:
        with pytest.raises(NcclInvalidUsageError, match="ncclAllReduce on rank") as caught:
            fused.fused_scale_all_reduce(comm, np.ones(3 + comm.rank, np.float32), 1.0)
        comm.abort()
        return caught.value.function, caught.value.rank

    assert _two_threads(run) == [("ncclAllReduce", 0), ("ncclAllReduce", 1)]


def test_waits_of_an_extension_are_traced() -> None:
    with _communicator() as comm:
        capsule = comm.__pynccl_communicator__()  # the pointed-to object lives as long as it
        c, self = open_capsule(capsule)
        assert c.begin_wait(self, None) is None
        with nccl.trace() as traced:
            comm.all_reduce(np.ones(4))
            number = c.last_operation(self)
            c.end_wait(self, c.begin_wait(self, None), number)
            c.end_wait(self, c.begin_wait(self, None), 0)
    assert traced.process is not None
    (operation,) = traced.process.operations
    known, unknown = traced.process.waits
    assert known.sequence == operation.sequence == number
    assert known.communicator == operation.communicator
    assert unknown.sequence is None


def test_capsule_matches_its_header() -> None:
    comm = _communicator()
    capsule = comm.__pynccl_communicator__()
    c, self = open_capsule(capsule)
    assert c.size == ctypes.sizeof(Capsule)
    assert c.handle(self) == comm.handle
    assert (c.rank, c.nranks, c.device, c.on_device) == (0, 1, comm.device, 0)
    assert c.version == comm.library.version
    assert c.path.decode() == comm.library.path
    assert c.function(self, b"ncclAllReduce")
    assert c.function(self, b"ncclNoSuchThing") is None
    assert c.driver_function(self, b"cuStreamDestroy")
    assert c.driver_function(self, b"cuStreamDestroy") == c.driver_function(
        self, b"cuStreamDestroy_v2"
    )
    assert c.driver_function(self, b"cuNoSuchThing") is None
    comm.close()
    assert c.handle(self) is None
    with pytest.raises(ValueError, match="closed"):
        comm.__pynccl_communicator__()


def test_capsule_knows_the_windows() -> None:
    comm = _communicator()
    capsule = comm.__pynccl_communicator__()
    c, self = open_capsule(capsule)
    memory = comm.mem_alloc(4096, "uint8")
    window = comm.register_window(memory)
    assert c.in_symmetric_window(self, window.address + 4000, 96) == 1
    assert c.in_symmetric_window(self, window.address + 4000, 97) == 0
    address = window.address
    window.close()
    assert c.in_symmetric_window(self, address, 1) == 0
    comm.close()


@pytest.mark.parametrize("peer", [-1, 1, 2**30])
@pytest.mark.parametrize("kind", ["send", "recv"])
def test_capsule_refuses_wrong_peers(kind: str, peer: int) -> None:
    """Before the flight recorder counts the message."""
    memory = np.ones(1, np.float32)
    with _communicator() as comm:
        text = issue_operations(comm, (kind, memory, memory, 1, peer))
        assert not comm.flight_record()
    assert text.startswith(f"root_or_peer: rank {peer} is out of range")


def test_references_keep_the_communicator() -> None:
    comm = _communicator()
    kept = weakref.ref(comm)
    capsule = comm.__pynccl_communicator__()
    c, self = open_capsule(capsule)
    c.retain(self)
    del capsule
    handle = comm.handle
    del comm
    gc.collect()
    assert c.handle(self) == handle
    kept().close()  # type: ignore[union-attr]
    release = c.release
    thread = threading.Thread(target=release, args=(self,))  # without the GIL, from anywhere
    thread.start()
    thread.join(30)
    assert kept() is None


# Every function of the list, without and with nccl.h, in the oldest C++ that the header promises.
_USER = """
{include}
#include <pynccl/pynccl.h>
using namespace pynccl::types;
static_assert(std::is_same_v<{type}, ncclComm_t>);
ncclResult_t run(const pynccl::CommunicatorRef& comm, void* data, cudaStream_t stream) {{
  auto reduce = PYNCCL_GET(comm, ncclAllReduce);
  static_assert(std::is_pointer_v<decltype(reduce)>);
  static_assert(!std::is_invocable_v<decltype(reduce), void*, void*, size_t, ncclRedOp_t,
                                     ncclDataType_t, decltype(comm.handle()), cudaStream_t>);
  PYNCCL_GET_DRIVER(comm, cuStreamSynchronize)(reinterpret_cast<pynccl::abi::CUstream>(stream));
  return reduce(data, data, 1, ncclFloat32, ncclMax, comm.handle(), stream);
}}
"""


def _compile(tmp_path: Path, source: str, *flags: str) -> subprocess.CompletedProcess[str]:
    import sysconfig

    import pybind11

    (tmp_path / "user.cpp").write_text(source)
    system = [sysconfig.get_path("include"), pybind11.get_include()]
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-Wall", "-Wextra", "-Wpedantic"]
    command += ["-Werror", "-fsyntax-only", f"-I{pynccl.get_include()}"]
    command += [word for folder in system for word in ("-isystem", folder)]
    return run_command([*command, *flags, "user.cpp"], tmp_path, os.environ, timeout=120)


def _sources() -> dict[str, str]:
    """The sources to compile, by name."""
    alone = _USER.format(include="#include <pybind11/pybind11.h>", type="pynccl::abi::ncclComm*")
    guide = (ROOT / "docs" / "extending.md").read_text()
    (of_guide,) = re.findall(r"```cpp\n(.+?)```", guide, re.DOTALL)
    return {
        "alone": alone + of_guide,
        "beside": _USER.format(include='#include "nccl.h"', type="::ncclComm*"),
    }


def test_header(tmp_path: Path) -> None:
    """Alone, also as the guide uses it, and beside NCCL's own, whose types are used then: here it
    is one of the same ABI.
    """
    sources = _sources()
    for name in sources:
        (tmp_path / name).mkdir()
    (tmp_path / "beside" / "nccl.h").write_text(_NCCL_H)
    with ThreadPoolExecutor(2) as threads:
        done = threads.map(_compile, [tmp_path / name for name in sources], sources.values())
        ends = dict(zip(sources, done, strict=True))
    assert {name: end.stderr for name, end in ends.items() if end.returncode} == {}


# As much of an nccl.h as the test uses, under NCCL's names.
_NCCL_H = """
#pragma once
#include <cstddef>
#define NCCL_MAJOR 2
typedef struct CUstream_st* cudaStream_t;
typedef struct ncclComm* ncclComm_t;
extern "C" {
typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;
typedef enum { ncclInt8 = 0, ncclUint8 = 1, ncclInt32 = 2, ncclUint32 = 3, ncclInt64 = 4,
  ncclUint64 = 5, ncclFloat16 = 6, ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9 }
  ncclDataType_t;
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
  cudaStream_t);
const char* ncclGetErrorString(ncclResult_t);
const char* ncclGetLastError(ncclComm_t);
}
"""


def test_get_include_needs_nothing() -> None:
    code = "import sys, pynccl; print(pynccl.get_include()); assert 'torch' not in sys.modules"
    assert Path(python_output(code), "pynccl", "pynccl.h").is_file()
