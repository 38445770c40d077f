"""Proves that pynccl/device.h and the kernels of the examples compile for real GPUs, without one:
by NVRTC and by nvcc, for several architectures, with NCCL's own headers of as many versions as are
here; and that the module says which version of NCCL it was compiled with.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from pathlib import Path

import pytest

import pynccl
from benchmarks.kernels import compile_for_gpus
from tests.device import builds
from tests.support.commands import run_command
from tests.support.tier import FULL

_HEADERS = {v: path for v, path in builds.nccl_headers().items() if v >= 22807}
_VERSIONS = sorted(_HEADERS)
# Versions and architectures; without `make test-all` the ends of both, by nvcc the last ones.
_TARGETS = [(version, architecture) for version in _VERSIONS for architecture in (90, 100)]
if not FULL and len(_TARGETS) > 2:
    _TARGETS = [_TARGETS[0], _TARGETS[-1]]
_NVCC_TARGETS = _TARGETS if FULL else _TARGETS[-1:]

pytestmark = pytest.mark.skipif(
    not _HEADERS, reason="no nccl_device.h: install nvidia-nccl-cu13 or run `make abi`"
)


def _check(cubin: bytes, version: int) -> None:
    assert cubin.startswith(b"\x7fELF")
    assert set(builds.KERNELS) <= {name.decode() for name in re.findall(rb"\.text\.(\w+)", cubin)}
    assert b"pynccl_device_version" in cubin
    assert struct.pack("<i", version) in cubin


def _by_nvrtc(source: str, version: int, architecture: int) -> bytes:
    cuda = builds.cuda_includes()
    if not cuda:
        pytest.skip("CUDA's headers are not complete: install a toolkit or run `make abi`")
    shims = f"-I{pynccl.get_include()}/pynccl/device/nvrtc"
    options = ["-default-device", *builds.own_includes(), shims, f"-I{_HEADERS[version]}", *cuda]
    return compile_for_gpus(source, architecture, *options)


@pytest.mark.parametrize(("version", "architecture"), _TARGETS)
def test_by_nvrtc(version: int, architecture: int) -> None:
    _check(_by_nvrtc(builds.source(), version, architecture), version)


@pytest.mark.parametrize(("version", "architecture"), _NVCC_TARGETS)
def test_by_nvcc(tmp_path: Path, version: int, architecture: int) -> None:
    nvcc = shutil.which("nvcc")
    if not nvcc:
        pytest.skip("there is no nvcc; test_by_nvrtc compiles the same")
    if not list(_HEADERS[version].glob("nccl_device/gin/**/*.cuh")):
        pytest.skip("an older `make abi` left out headers of GIN: remove its folder, run it again")
    (tmp_path / "kernels.cu").write_text(builds.source())
    command = [nvcc, "-std=c++17", f"-arch=sm_{architecture}", "-cubin", "-Werror=all-warnings"]
    command += [*builds.own_includes(), "-isystem", str(_HEADERS[version]), "kernels.cu"]
    done = run_command(command, tmp_path, os.environ, timeout=300)
    assert done.returncode == 0, done.stderr
    _check((tmp_path / "kernels.cubin").read_bytes(), version)


_SIGNAL = """
#include <pynccl/device.h>
struct Arguments {{ ncclDevComm comm; ncclWindow_t window; }};
PYNCCL_KERNEL(k, Arguments, block, a) {{
  (void)pynccl::device::wait(block, a.comm, pynccl::device::local<{}>(a.window, 0), 1);
}}
"""


def test_mistakes_do_not_compile() -> None:
    _by_nvrtc(_SIGNAL.format("uint32_t"), _VERSIONS[-1], 90)
    with pytest.raises(ValueError, match="a signal is a uint32_t or uint64_t"):
        _by_nvrtc(_SIGNAL.format("int"), _VERSIONS[-1], 90)
