"""Proves that pynccl/device.h and the kernels of the examples give the right results on CPUs: each
function with ranks that are threads of a C++ program, without data races, and each kernel over
hostnccl's device communicators; and that a kernel refuses a device communicator of another version.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import numpy as np
import pytest

from pynccl import memory, nccl, raw
from tests.device import builds
from tests.support.commands import ROOT, run_command
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_PROGRAM = Path(__file__).parent / "host_kernels.cpp"
_SECONDS = 120
_BYTES = 1 << 20  # of a window


def _run_program(program: Path, nranks: int) -> None:
    env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = run_command([str(program), str(nranks)], ROOT, env, _SECONDS)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("program") / "host_kernels"
    options = ["-O2", "-march=native"] if FULL else ["-O1"]
    return builds.compile_for_cpus(target, _PROGRAM.read_text(), *options)


@pytest.mark.parametrize("nranks", [1, 2, 4])
def test_functions(program: Path, nranks: int) -> None:
    _run_program(program, nranks)


@pytest.mark.skipif(not FULL, reason="it compiles the program once more: `make test-all`")
def test_no_data_race(tmp_path: Path) -> None:
    options = ["-O1", "-g", "-fsanitize=thread"]
    target = builds.compile_for_cpus(tmp_path / "host_kernels", _PROGRAM.read_text(), *options)
    _run_program(target, 3)


def test_guide_compiles(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (of_guide,) = re.findall(r"```c\+\+\n(.+?)```", guide, re.DOTALL)
    builds.compile_for_cpus(tmp_path / "guide.so", of_guide, "-shared", "-fPIC")


_BARRIER = """
struct MeetArguments { ncclDevComm comm; ncclWindow_t window; int index; };
PYNCCL_KERNEL(meet, MeetArguments, block, a) {
  pynccl::device::LsaBarrier barrier(block, a.comm, a.index);
  if (!barrier.sync()) return;
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of the examples, and one for barriers."""
    target = tmp_path_factory.mktemp("module") / "kernels.so"
    return builds.compile_for_cpus(target, builds.source() + _BARRIER, "-O1", "-shared", "-fPIC")


def test_module_says_its_version(module: Path) -> None:
    version = ctypes.c_int.in_dll(ctypes.CDLL(str(module)), "pynccl_device_version")
    assert version.value == raw.ncclDevCommRequirements_t().version


_Field = ctypes.c_uint64 | ctypes.c_int | ctypes.c_uint32
_Argument = _Field | int | np.ndarray


def _as_field(argument: _Argument) -> _Field:
    if isinstance(argument, np.ndarray):
        return ctypes.c_uint64(argument.ctypes.data)
    return ctypes.c_uint64(argument) if isinstance(argument, int) else argument


class _Kernels:
    """The kernels of the module on one rank's window and device communicator."""

    def __init__(self, rank: Rank, module: Path, barriers: int = 2) -> None:
        self._rank, self._module = rank, ctypes.CDLL(str(module))
        self.stream: nccl.Stream | None = None  # on which kernels run; None: the calling thread
        self.array = memory.numpy_empty(rank.comm, _BYTES, "uint8")
        self.array[:] = 0
        self._window = rank.comm.register_window(self.array)
        requirements = raw.ncclDevCommRequirements_t()
        requirements.lsaBarrierCount = barriers
        library = rank.comm.library
        self._comm = library.ncclDevCommCreate(rank.comm.handle, requirements)
        rank.comm.all_reduce(np.ones(1, np.int32))  # the memory of all ranks is 0

    def run(self, name: str, *arguments: _Argument) -> None:
        """Call a kernel with the arguments after the window; integers are of type size_t."""
        comm = bytes(self._comm)
        fields: list[tuple[str, type]] = [
            ("comm", ctypes.c_uint64 * (len(comm) // 8)),
            ("window", ctypes.c_uint64),
        ]
        values = [_as_field(argument) for argument in arguments]
        fields += [(f"a{i}", type(value)) for i, value in enumerate(values)]
        struct = type("Arguments", (ctypes.Structure,), {"_fields_": fields})()
        struct.comm = type(struct.comm).from_buffer_copy(comm)
        struct.window = self._window.handle
        for i, value in enumerate(values):
            setattr(struct, f"a{i}", value)
        if self.stream is None:
            self._module[name](ctypes.byref(struct))
            return
        address = ctypes.cast(self._module[name], ctypes.c_void_p).value
        self.stream.launch_native(address, struct)
        self.stream.synchronize()

    def close(self) -> None:
        self._rank.comm.library.ncclDevCommDestroy(self._rank.comm.handle, self._comm)


def _all_reduce(rank: Rank, kernels: _Kernels) -> None:
    out = np.zeros(1000, np.float32)
    for turn in range(20):
        inputs = [np.arange(1000, dtype=np.float32) * (r + turn) for r in range(rank.nranks)]
        kernels.array[4096:8096].view(np.float32)[:] = inputs[rank.rank]
        kernels.run("all_reduce_float32", 4096, out, out.size)
        assert (out == sum(inputs)).all()
        kernels.run("all_reduce_buffered_float32", 8192, 1000, inputs[rank.rank], out, out.size)
        assert (out == sum(inputs)).all()
        kernels.run("all_reduce_buffered_float32", 8192, 1000, out, out, out.size)  # in place
        assert (out == rank.nranks * sum(inputs)).all()


def _halo(rank: Rank, kernels: _Kernels) -> None:
    rows, columns = 5, 40
    kernels.array[:65536] = 0
    rank.comm.all_reduce(np.ones(1, np.int32))
    grid = np.random.default_rng(2).random((rank.nranks * rows, columns), np.float32)
    now = grid[rank.rank * rows :][:rows].copy()
    after = np.empty_like(now)
    for step in range(1, 20):
        sizes = ctypes.c_int(rows), ctypes.c_int(columns), ctypes.c_uint32(step)
        kernels.run("halo_step", 4096, 0, now, after, *sizes)
        now, after = after, now
        inside = (grid[:-2, 1:-1] + grid[2:, 1:-1]) + grid[1:-1, :-2] + grid[1:-1, 2:]
        grid[1:-1, 1:-1] = np.float32(0.25) * inside
    np.testing.assert_allclose(now, grid[rank.rank * rows :][:rows], rtol=1e-6)


@pytest.mark.parametrize(("nranks", "threads"), [(2, True), (4, False)])
@on_ranks(by="threads")
def test_over_hostnccl(rank: Rank, module: Path) -> None:
    """test_functions() runs the other kernels."""
    kernels = _Kernels(rank, module)
    for kernels.stream in (None, rank.stream()):
        for case in (_all_reduce, _halo):
            case(rank, kernels)
            rank.comm.all_reduce(np.ones(1, np.int32))
    kernels.close()


@on_ranks(2, threads=True)
def test_a_barrier_that_does_not_exist(rank: Rank, module: Path) -> None:
    """The error reaches the caller of synchronize(), and no memory is written."""
    for barriers in (0, 2):
        kernels = _Kernels(rank, module, barriers)
        kernels.stream = rank.stream()
        for index in range(barriers):
            kernels.run("meet", ctypes.c_int(index))
        for index in (-1, barriers, 2**31 - 1):
            text = f"index {index} is out of range, the device communicator has {barriers} barriers"
            with pytest.raises(RuntimeError, match=text):
                kernels.run("meet", ctypes.c_int(index))
        for index in range(barriers):  # no barrier was changed
            kernels.run("meet", ctypes.c_int(index))
        rank.comm.all_reduce(np.ones(1, np.int32))
        kernels.close()
