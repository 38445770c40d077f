"""NCCL's device functions for Triton kernels on GPUs: those of its libnccl_device.bc.

    from pynccl.device.triton import nccl

    @triton.jit
    def kernel(window, ...):
        x = tl.load(nccl.lsa_pointer(window, 0, peer, tl.float32) + offsets)

    kernel[grid](window.handle, ..., extern_libs=nccl.extern_libs())

The library is part of NCCL from 2.30 on, for LLVM; Triton links it into the kernel. Its version has
to be that of the NCCL that made the windows and device communicators, since their layouts change:
:func:`extern_libs` refuses another one.

A window is its handle (ncclWindow_t), a device communicator the address of its ncclDevComm in
memory of the GPU, both as int64. The sessions of NCCL's barriers cannot be made in Triton: they are
C++ objects that are passed by value. :func:`lsa_barrier` does the same in a resource buffer of the
device communicator.

Triton's interpreter cannot call these functions; :mod:`pynccl.device.triton` works by addresses in
both.
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
from pynccl.device.triton import _WORD, _pause, _read, barrier_words, pointer
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
    """The libnccl_device.bc of a loaded NCCL.

    It is PYNCCL_NCCL_DEVICE_LIBRARY, else the file beside libnccl.so.2, else what cuda-pathfinder
    finds.

    Args:
        library: the NCCL; that of provider "cuda" by default.

    Returns:
        Its path.

    Raises:
        LibraryNotFoundError: there is none, or its version is not that of the library or cannot be
            told.
        ValueError: the library is hostnccl, which has no device code.
    """
    library = library or libraries.load("cuda")
    if library.memory != "device":
        raise ValueError(f"library: {library.path} is for CPUs, which {_NAME} is not")
    path, reason = _locate(library)
    wanted, found = _C.version_text(library.version), version_of(path)
    if found != wanted:
        raise LibraryNotFoundError(
            f"{path} ({reason}) is of NCCL {found}, but {library.path} is NCCL {wanted}; kernels "
            "need device code of the same version"
        )
    return path


def extern_libs(library: _C.Library | None = None) -> dict[str, str]:
    """The argument ``extern_libs`` of a kernel that uses these functions.

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
            f"{_NAME} was not found beside {library.path}; it is part of NCCL from 2.30 on, and "
            "PYNCCL_NCCL_DEVICE_LIBRARY can be its path"
        ) from error


def version_of(path: Path) -> str:
    """The version of the NCCL that a libnccl_device.bc is part of.

    The file does not contain it: the nccl.h or the libnccl.so.2 of the same installation does.

    Args:
        path: the file.

    Returns:
        The version, as "2.31.2".

    Raises:
        LibraryNotFoundError: the file is not there, or has neither beside it.
    """
    if not path.exists():
        raise LibraryNotFoundError(f"{path} does not exist")
    folder = Path(os.path.realpath(path)).parent
    for header in (folder.parent / "include/nccl.h", folder.parent.parent / "include/nccl.h"):
        if header.exists():
            parts = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text())
            if len(parts) == 3:
                return ".".join(parts)
    shared = folder / "libnccl.so.2"
    if shared.exists():
        with (
            shared.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            if match := re.search(rb"NCCL version (\d+\.\d+\.\d+)", text):
                return match[1].decode()
    raise LibraryNotFoundError(f"{path} has no nccl.h and no libnccl.so.2 that tell its version")


_I32, _I64 = core.dtype("int32"), core.dtype("int64")


def _extern(symbol: str, result: core.dtype, *types: core.dtype) -> Any:
    """A function of the library for kernels. Addresses are int64, as Triton passes scalars."""

    def function(*args: Any, _semantic: Any = None) -> Any:
        if _semantic is None:
            raise NotImplementedError(
                f"{symbol} is device code: Triton's interpreter cannot call it; use the functions "
                "of pynccl.device.triton, which work by addresses"
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
    """A function of a device communicator that returns a number."""
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
nranks = _number("ncclDevComm_NRanks", "How many ranks the communicator has")
lsa_rank = _number("ncclDevComm_LsaRank", "The rank of this process in its LSA team")
lsa_size = _number("ncclDevComm_LsaSize", "How many ranks the LSA team has")


@triton.jit
def local_pointer(window, offset, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """The pointer to the own memory of a window (ncclGetLocalPointer).

    Args:
        window: the handle of the window, int64.
        offset: in bytes.
        dtype: the type of the elements.
        alignment: bytes that the address is a multiple of, which the compiler relies on.

    Returns:
        A pointer to dtype.
    """
    return pointer(_local(window, offset), dtype, alignment)


@triton.jit
def lsa_pointer(window, offset, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """The pointer to the memory of a rank of the LSA team (ncclGetLsaPointer).

    Args:
        window: the handle of the window, int64.
        offset: in bytes.
        peer: its rank in the LSA team.
        dtype: the type of the elements.
        alignment: bytes that the address is a multiple of, which the compiler relies on.

    Returns:
        A pointer to dtype.
    """
    return pointer(_lsa(window, offset, peer), dtype, alignment)


@triton.jit
def peer_pointer(window, offset, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """The pointer to the memory of a rank of the communicator (ncclGetPeerPointer).

    Args:
        window: the handle of the window, int64.
        offset: in bytes.
        peer: its rank in the communicator. It is in the LSA team.
        dtype: the type of the elements.
        alignment: bytes that the address is a multiple of, which the compiler relies on.

    Returns:
        A pointer to dtype.
    """
    return pointer(_peer(window, offset, peer), dtype, alignment)


@triton.jit
def lsa_multimem_pointer(window, offset, comm, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """The multicast pointer of the LSA team (ncclGetLsaMultimemPointer).

    Args:
        window: the handle of the window, int64.
        offset: in bytes.
        comm: the address of the ncclDevComm, int64. It was made with lsaMultimem.
        dtype: the type of the elements.
        alignment: bytes that the address is a multiple of, which the compiler relies on.

    Returns:
        A pointer to dtype, for instructions of multimem only.
    """
    return pointer(_multimem(window, offset, comm), dtype, alignment)


@triton.jit
def resource_pointer(comm, buffer, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """The pointer to a peer's resource buffer (ncclGetResourceBufferLsaPointer).

    Args:
        comm: the address of the ncclDevComm, int64.
        buffer: the handle of the buffer (ncclDevResourceHandle), from the requirements.
        peer: its rank in the LSA team.
        dtype: the type of the elements.
        alignment: bytes that the address is a multiple of, which the compiler relies on.

    Returns:
        A pointer to dtype.
    """
    return pointer(_resource_lsa(comm, buffer, peer), dtype, alignment)


@triton.jit
def lsa_barrier(comm, buffer, index=0):
    """Wait until all ranks of the LSA team have come here, as ``barrier()`` by addresses does.

    Args:
        comm: the address of the ncclDevComm, int64.
        buffer: the handle of a resource buffer of :func:`barrier_words` words of 8 bytes.
        index: which barrier in it.
    """
    own = lsa_rank(comm)
    size = lsa_size(comm)
    first = index * (size + 1)
    local = resource_pointer(comm, buffer, own, _WORD, 8) + first
    epoch = tl.load(local + size) + 1
    # The atomics are those of one thread: the stores of all others come before them.
    tl.debug_barrier()
    for step in range(size):
        word = resource_pointer(comm, buffer, (own + step) % size, _WORD, 8) + first + own
        tl.atomic_add(word, 1, sem="release", scope="sys")
    for peer in range(size):
        seen = _read(local + peer)
        while seen < epoch:
            _pause(0)
            seen = _read(local + peer)
    tl.debug_barrier()
    tl.store(local + size, epoch)
    tl.debug_barrier()  # the next barrier loads it, in all threads
