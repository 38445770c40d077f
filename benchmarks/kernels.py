"""The example kernels over <pynccl/device.h>, compiled for this machine, as calls; loops in C."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.timing import Elapsed, Timer
from pynccl.device import headers

__all__ = [
    "FOLDER",
    "OWN",
    "CpuKernels",
    "GpuKernels",
    "c_compiler",
    "compile_for_cpus",
    "compile_for_gpus",
    "shared_library",
    "source",
]

FOLDER = Path(__file__).parents[1] / "examples" / "device" / "kernels"
OWN = Path(__file__).parent  # of the C sources of the benchmarks

_TIMEOUT = 120.0  # seconds
_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def c_compiler() -> str:
    """Return the command of the C compiler, empty if there is none."""
    return next(filter(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang")), "")


def shared_library(source: Path, folder: Path, *options: str, compiler: str = "") -> Path:
    """Compile a file as a shared library.

    Args:
        source: the file.
        folder: the folder of the library, which has the name of the file.
        *options: options of the compiler.
        compiler: the command of the compiler; empty is the C compiler.

    Returns:
        The path of the library.
    """
    target = (folder / source.name).with_suffix(".so")
    command = [compiler or c_compiler(), "-O3", "-shared", "-fPIC", *options, str(source)]
    subprocess.run([*command, "-o", str(target)], check=True, timeout=_TIMEOUT)
    return target


def source() -> str:
    """Return a source that includes all kernels."""
    return "".join(f'#include "{path.name}"\n' for path in sorted(FOLDER.glob("*.cu")))


def compile_for_cpus(folder: Path) -> Path:
    """Compile the kernels as a shared library.

    Raises:
        subprocess.CalledProcessError: they do not compile.
    """
    file = folder / "kernels.cpp"
    file.write_text(source())
    options = ("-march=native", *headers.options("c++"), f"-I{FOLDER}")
    return shared_library(file, folder, *options, compiler=os.environ.get("CXX", "c++"))


def compile_for_gpus(source: str, architecture: int, *options: str) -> bytes:
    """Return machine code (a cubin) for an architecture, by CuPy's NVRTC, which needs no GPU.

    Args:
        source: the program, in CUDA C++.
        architecture: 90 for sm_90.
        *options: options of the compiler.

    Raises:
        ValueError: the source does not compile; the text is the compiler's log.
    """
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "", (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture=sm_{architecture}", *options))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise ValueError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


class CpuKernels:
    """The kernels of a shared library, called as functions.

    Attributes:
        version: the version of the layouts that they are compiled with.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.version = ctypes.c_int.in_dll(self._library, "pynccl_device_version").value

    def launch(self, name: str, arguments: bytes, blocks: int, stream: int) -> None:
        """Run a kernel as one block. The stream is not used."""
        del blocks, stream
        self._library[name](ctypes.create_string_buffer(arguments, len(arguments)))

    def loop(self, loops: ctypes.CDLL, name: str, arguments: bytes) -> Timer:
        """Return a timer of a kernel by the loop of loop.c."""
        kernel = ctypes.cast(self._library[name], ctypes.c_void_p)
        content = ctypes.create_string_buffer(arguments, len(arguments))
        loops.loop_kernel.restype = ctypes.c_double
        return lambda calls: Elapsed(
            loops.loop_kernel(kernel, content, ctypes.c_long(calls)) / calls
        )


class GpuKernels:
    """The kernels of a cubin, in the current context.

    Attributes:
        version: the version of the NCCL headers that they are compiled with.
    """

    threads = 256  # of a block

    def __init__(self, device: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        parts = []
        for attribute in _COMPUTE_CAPABILITY:
            value = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            parts.append(value.value)
        self._module = ctypes.c_void_p()
        options = (*headers.options("nvrtc"), f"-I{FOLDER}")
        cubin = compile_for_gpus(source(), 10 * parts[0] + parts[1], *options)
        self._call("cuModuleLoadData", ctypes.byref(self._module), cubin)
        self._functions: dict[str, ctypes.c_void_p] = {}
        address, size, version = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int()
        self._call(
            "cuModuleGetGlobal_v2",
            ctypes.byref(address),
            ctypes.byref(size),
            self._module,
            b"pynccl_device_version",
        )
        self._call("cuMemcpyDtoH_v2", ctypes.byref(version), address, ctypes.c_size_t(4))
        self.version = version.value

    def launch(self, name: str, arguments: bytes, blocks: int, stream: int) -> None:
        """Enqueue a kernel, whose argument is one struct."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        content = ctypes.create_string_buffer(arguments, len(arguments))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(content))
        grid = (blocks, 1, 1, self.threads, 1, 1, 0)
        self._call("cuLaunchKernel", function, *grid, ctypes.c_void_p(stream), pointers, None)

    def _call(self, name: str, *arguments: object) -> None:
        if code := self._driver[name](*arguments):
            raise RuntimeError(f"{name} failed with {code}")
