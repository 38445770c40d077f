"""NCCL's device functions for Triton kernels on GPUs, from libnccl_device.bc.

    from pynccl.device.triton import nccl

    @triton.jit
    def kernel(window, ...):
        x = tl.load(nccl.lsa_pointer(window, 0, peer, tl.float32) + offsets)

    kernel[grid](window.handle, ..., extern_libs=nccl.extern_libs())

This LLVM bitcode library is part of NCCL since 2.30; Triton links it into the kernel. Its version
must match the NCCL that created the windows and device communicators, because their layouts change:
:func:`extern_libs` rejects other versions.

A window is passed as its handle (ncclWindow_t), a device communicator as the address of its
ncclDevComm in GPU memory, both as int64. An offset is in bytes. The type of the elements and the
alignment of a pointer are those of :func:`pynccl.device.triton.pointer`. Triton cannot create
NCCL's barrier sessions, which are C++ objects passed by value. :func:`lsa_barrier` implements a
barrier in a resource buffer of the device communicator instead.

Triton's interpreter cannot call these functions. :mod:`pynccl.device.triton` works with addresses,
both on GPUs and in the interpreter.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.language import core

from pynccl import _C, libraries
from pynccl.device.headers import header_version
from pynccl.device.triton import _WORD, _read, barrier_words, pointer
from pynccl.errors import LibraryNotFoundError

__all__ = [
    "barrier_words",
    "device_library",
    "extern_libs",
    "local_pointer",
    "lsa_barrier",
    "lsa_multimem_pointer",
    "lsa_pointer",
    "lsa_rank",
    "lsa_size",
    "nranks",
    "peer_pointer",
    "rank",
    "resource_pointer",
]

_NAME = "libnccl_device.bc"


def device_library(library: _C.Library | None = None) -> Path:
    """Return the path of the libnccl_device.bc of a loaded NCCL.

    This is PYNCCL_NCCL_DEVICE_LIBRARY, or else the file beside libnccl.so.2, or else the one found
    by cuda-pathfinder.

    Args:
        library: the NCCL; that of provider "cuda" by default.

    Returns:
        Its path.

    Raises:
        LibraryNotFoundError: there is none, or its version differs from the library's or is
            unknown.
        ValueError: the library is hostnccl, which has no device code.
    """
    library = library or libraries.load("cuda")
    if library.memory != "device":
        raise ValueError(f"library: {library.path} is for CPUs, {_NAME} is for GPUs")
    path, reason = _locate(library)
    wanted, found = _C.version_text(library.version), version_of(path)
    if found != wanted:
        raise LibraryNotFoundError(
            f"{path} ({reason}) is of NCCL {found}, but {library.path} is NCCL {wanted}; kernels "
            "need device code of the same version"
        )
    return path


def extern_libs(library: _C.Library | None = None) -> dict[str, str]:
    """Return the argument ``extern_libs`` for kernels that use these functions.

    Args:
        library: as for :func:`device_library`, which raises the errors.

    Returns:
        The name of the library and its path, for ``kernel[grid](..., extern_libs=...)``.
    """
    return {"libnccl_device": str(device_library(library))}


def _locate(library: _C.Library) -> tuple[Path, str]:
    if chosen := os.environ.get("PYNCCL_NCCL_DEVICE_LIBRARY"):
        return Path(chosen), "PYNCCL_NCCL_DEVICE_LIBRARY"
    beside = Path(os.path.realpath(library.path)).with_name(_NAME)
    if beside.exists():
        return beside, "beside libnccl.so.2"
    try:
        from cuda.pathfinder import find_bitcode_lib

        return Path(find_bitcode_lib("nccl_device")), "found by cuda-pathfinder"
    except Exception as error:
        raise LibraryNotFoundError(
            f"{_NAME} was not found beside {library.path}; it is part of NCCL since 2.30. Set "
            "PYNCCL_NCCL_DEVICE_LIBRARY to its path"
        ) from error


def version_of(path: Path) -> str:
    """Return the version of the NCCL that a libnccl_device.bc is part of.

    The file does not contain its version; it is read from nccl.h or libnccl.so.2 of the same
    installation.

    Args:
        path: the file.

    Returns:
        The version, such as "2.31.2".

    Raises:
        LibraryNotFoundError: the file does not exist, or neither of these is beside it.
    """
    if not path.exists():
        raise LibraryNotFoundError(f"{path} does not exist")
    folder = Path(os.path.realpath(path)).parent
    for header in (folder.parent / "include/nccl.h", folder.parent.parent / "include/nccl.h"):
        if header.exists() and (version := header_version(header)):
            return version
    shared = folder / "libnccl.so.2"
    if shared.exists():
        with (
            shared.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            if match := re.search(rb"NCCL version (\d+\.\d+\.\d+)", text):
                return match[1].decode()
    raise LibraryNotFoundError(f"{path}: unknown version, without nccl.h or libnccl.so.2 beside it")


_I32, _I64 = core.dtype("int32"), core.dtype("int64")


def _extern(symbol: str, result: core.dtype, *types: core.dtype) -> Any:
    """Return a library function for kernels. Addresses are int64, as Triton passes scalars."""

    def function(*args: Any, _semantic: Any = None) -> Any:
        if _semantic is None:
            raise NotImplementedError(
                f"{symbol} is device code, which Triton's interpreter cannot call; use the "
                "functions of pynccl.device.triton, which work with addresses"
            )
        tensors = [_semantic.to_tensor(value) for value in args]
        scalars = [_semantic.cast(value, kind) for value, kind in zip(tensors, types, strict=True)]
        return core.extern_elementwise(
            "", "", scalars, {types: (symbol, result)}, is_pure=True, _semantic=_semantic
        )

    function.__name__ = symbol
    setattr(function, core.TRITON_BUILTIN, True)
    return function


_local = _extern("ncclGetLocalPointer", _I64, _I64, _I64)
_lsa = _extern("ncclGetLsaPointer", _I64, _I64, _I64, _I32)
_peer = _extern("ncclGetPeerPointer", _I64, _I64, _I64, _I32)
_multimem = _extern("ncclGetLsaMultimemPointer", _I64, _I64, _I64, _I64)
_resource_lsa = _extern("ncclGetResourceBufferLsaPointer", _I64, _I64, _I32, _I32)


def _number(symbol: str, meaning: str) -> Any:
    """Return a function that reads a number from a device communicator."""
    call = _extern(symbol, _I32, _I64)

    def function(dev_comm: Any, _semantic: Any = None) -> Any:
        return call(dev_comm, _semantic=_semantic)

    function.__name__ = symbol
    function.__doc__ = f"""{meaning} ({symbol}).

    Args:
        dev_comm: the address of the ncclDevComm in memory of the GPU, as int64.

    Returns:
        An int32.
    """
    setattr(function, core.TRITON_BUILTIN, True)
    return function


rank = _number("ncclDevComm_Rank", "The rank of this process in the communicator")
nranks = _number("ncclDevComm_NRanks", "The number of ranks in the communicator")
lsa_rank = _number("ncclDevComm_LsaRank", "The rank of this process in its LSA team")
lsa_size = _number("ncclDevComm_LsaSize", "The number of ranks in the LSA team")


@triton.jit
def local_pointer(window, offset, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """Return a pointer to this rank's memory in a window (ncclGetLocalPointer)."""
    return pointer(_local(window, offset), dtype, alignment)


@triton.jit
def lsa_pointer(window, offset, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """Return a pointer to the memory of a rank of the LSA team (ncclGetLsaPointer).

    Args:
        peer: its rank in the LSA team.
    """
    return pointer(_lsa(window, offset, peer), dtype, alignment)


@triton.jit
def peer_pointer(window, offset, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """Return a pointer to the memory of a rank of the communicator (ncclGetPeerPointer).

    Args:
        peer: its rank in the communicator; it must be in the LSA team.
    """
    return pointer(_peer(window, offset, peer), dtype, alignment)


@triton.jit
def lsa_multimem_pointer(window, offset, comm, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """Return the multicast pointer of the LSA team, for multimem instructions only.

    Equivalent to ncclGetLsaMultimemPointer.

    Args:
        comm: the address of the ncclDevComm, int64, which must have been created with lsaMultimem.
    """
    return pointer(_multimem(window, offset, comm), dtype, alignment)


@triton.jit
def resource_pointer(comm, buffer, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """Return a pointer to a peer's resource buffer (ncclGetResourceBufferLsaPointer).

    Args:
        comm: the address of the ncclDevComm, int64.
        buffer: the handle of the buffer (ncclDevResourceHandle), from the requirements.
        peer: its rank in the LSA team.
    """
    return pointer(_resource_lsa(comm, buffer, peer), dtype, alignment)


@triton.jit
def lsa_barrier(comm, buffer, index=0):
    """Wait until all ranks of the LSA team have arrived, like :func:`pynccl.device.triton.barrier`.

    Args:
        comm: the address of the ncclDevComm, int64.
        buffer: the handle of a resource buffer of :func:`barrier_words` words of 8 bytes.
        index: the index of the barrier in the buffer.
    """
    own = lsa_rank(comm)
    size = lsa_size(comm)
    first = index * (size + 1)
    local = resource_pointer(comm, buffer, own, _WORD, 8) + first
    epoch = tl.load(local + size) + 1
    # The atomics are executed by one thread, after the stores of all other threads.
    tl.debug_barrier()
    for step in range(size):
        word = resource_pointer(comm, buffer, (own + step) % size, _WORD, 8) + first + own
        tl.atomic_add(word, 1, sem="release", scope="sys")
    for peer in range(size):
        seen = _read(local + peer)
        while seen < epoch:
            seen = _read(local + peer)
    tl.debug_barrier()
    tl.store(local + size, epoch)
    tl.debug_barrier()  # all threads load it in the next barrier
