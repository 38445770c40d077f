"""Proves hostnccl's arithmetic in its edge cases, bit for bit: every pair of 8-bit floats, every
16-bit one, subnormal and infinite numbers, NaNs, both zeros, integers that wrap and are divided,
rounded scalars, and counts above 2^31.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pytest

from pynccl import nccl
from tests.support import dtypes, reference
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_OPS = ("SUM", "PROD", "MAX", "MIN", "AVG")

# The NaN that CUDA's headers name, as the bits of each dtype.
_NAN = {
    "float16": 0x7FFF,
    "bfloat16": 0x7FFF,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7F,
    "float32": 0x7FFFFFFF,
    "float64": 0xFFF8000000000000,
}


def _bits(name: str) -> np.dtype:
    return np.dtype(f"u{dtypes.numpy_dtype(name).itemsize}")


def _inputs(name: str, nranks: int) -> list[np.ndarray]:
    """The elements of each rank: all pairs (8 bit), all values (16 bit), or many."""
    dtype, unsigned = dtypes.numpy_dtype(name), _bits(name)
    rng = np.random.default_rng(dtype.itemsize)
    if dtype.itemsize == 1:
        every = np.arange(256, dtype=np.uint8)
        columns = [np.tile(every, 256), np.repeat(every, 256)]
        columns += [rng.permutation(columns[0]) for _ in range(nranks - 2)]
        return [column.view(dtype) for column in columns[:nranks]]
    if dtype.itemsize == 2:
        every = np.arange(65536, dtype=np.uint16)
        return [every.view(dtype), *(rng.permutation(every).view(dtype) for _ in range(nranks - 1))]
    limits = np.iinfo(unsigned)
    special = rng.integers(0, limits.max, 40, unsigned, endpoint=True).view(dtype)
    if name in dtypes.INTEGERS:
        signed = np.iinfo(dtype)
        values = [0, 1, 2, 3, signed.max, signed.max - 1, signed.min, signed.min + 1]
        special[: len(values)] = values
    else:
        finfo = np.finfo(dtype)
        values = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, finfo.max, -finfo.max]
        values += [finfo.smallest_normal, finfo.smallest_subnormal, finfo.eps, 1 + finfo.eps]
        special[: len(values)] = values
    columns = [np.tile(special, 40), np.repeat(special, 40)]
    columns += [rng.permutation(columns[0]) for _ in range(nranks - 2)]
    return columns[:nranks]


def _expected(inputs: list[np.ndarray], op: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        result = reference.reduce(inputs, op)
    name = result.dtype.name
    if name in _NAN:
        result.view(_bits(name))[np.isnan(result)] = _NAN[name]
    return result


def _arithmetic(rank: Rank, name: str) -> None:
    inputs = _inputs(name, rank.nranks)
    for op in _OPS:
        out = np.zeros_like(inputs[0])
        rank.comm.all_reduce(inputs[rank.rank], getattr(nccl, op), out=out)
        try:
            reference.check_bits(out, _expected(inputs, op))
        except AssertionError as error:
            raise AssertionError(f"{op}: {error}") from error


@pytest.mark.parametrize("nranks", [2, 3])
@pytest.mark.parametrize("name", dtypes.NCCL)
def test_every_kind_of_number(launch: Launcher, name: str, nranks: int) -> None:
    launch(nranks, _arithmetic, name)


@pytest.mark.parametrize("name", dtypes.NCCL)
def test_every_kind_of_number_on_older_cpus(launch: Launcher, name: str) -> None:
    launch(2, _arithmetic, name, env={"HOSTNCCL_ISA": "baseline"})


@on_ranks(1)
def test_one_rank_copies(rank: Rank) -> None:
    """With one rank the result is the input, including all bits of NaNs."""
    for name in dtypes.NCCL:
        (values,) = _inputs(name, 1)
        for op in _OPS:
            out = np.zeros_like(values)
            rank.comm.all_reduce(values, getattr(nccl, op), out=out)
            reference.check_bits(out, values)


@on_ranks(2)
def test_scalars_are_rounded_to_the_dtype(rank: Rank) -> None:
    """A scalar is rounded to the dtype, whether passed as a number or in an array."""
    numbers = [0.1, 1 / 3, -2.5, 3.14159, 1e-3, 0.0]
    for name in dtypes.FLOATS:
        dtype = dtypes.numpy_dtype(name)
        values = dtypes.sample(name, 1009, np.random.default_rng(1))
        for number in numbers:
            results = []
            for scalar in (number, np.array([number]).astype(dtype)):
                op = rank.comm.pre_mul_sum(scalar, dtype)
                out = np.zeros_like(values)
                rank.comm.all_reduce(values, op, out=out)
                op.close()
                results.append(out)
            reference.check_bits(results[0], results[1])
            work = np.float32 if name in dtypes.HALVES else dtype.type
            product = values.astype(work) * np.array(number).astype(dtype).astype(work)
            for _ in range(1, rank.nranks):
                product = product + values.astype(work) * np.array(number).astype(dtype).astype(
                    work
                )
            reference.check_bits(results[0], product.astype(dtype))


@on_ranks(2)
def test_a_scalar_in_memory_is_read_late(rank: Rank) -> None:
    """A scalar in memory is read when the operation runs."""
    scalar, values = np.array([2.0]), np.ones(5)
    op = rank.comm.pre_mul_sum(scalar, "float64")
    for number in (2.0, 3.0, -1.0):
        scalar[0] = number
        out = np.zeros(5)
        rank.comm.all_reduce(values, op, out=out)
        assert (out == number * rank.nranks).all()


_CHUNK = 64 << 20
_MANY = (1 << 31) + 5


class _Sparse:
    """More than 2^31 bytes of address space over two chunks of memory: the last bytes have their
    own, all others repeat.
    """

    def __init__(self, fill: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_long,
        ]  # fmt: skip
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._memory = os.memfd_create("sparse")
        os.ftruncate(self._memory, 2 * _CHUNK)
        chunks = -(-_MANY // _CHUNK)
        self._size = chunks * _CHUNK
        self.address = self._map(None, 0, chunks * _CHUNK, fixed=False)
        for chunk in range(chunks):
            last = chunk == chunks - 1
            self._map(self.address + chunk * _CHUNK, _CHUNK if last else 0, _CHUNK, fixed=True)
        ctypes.memset(self.address, fill, 8)
        self.tail()[:] = fill

    def _map(self, address: int | None, offset: int, size: int, *, fixed: bool) -> int:
        flags = mmap.MAP_SHARED | (0x10 if fixed else 0)  # MAP_FIXED
        access = mmap.PROT_READ | mmap.PROT_WRITE
        found: int = self._libc.mmap(address, size, access, flags, self._memory, offset)
        assert found not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        return found

    def tail(self) -> np.ndarray:
        """The last bytes, beyond 2^31."""
        base = self.address + _MANY - 5
        return np.frombuffer((ctypes.c_uint8 * 5).from_address(base), np.uint8)

    def head(self) -> int:
        return ctypes.c_uint8.from_address(self.address).value

    def close(self) -> None:
        self._libc.munmap(self.address, self._size)
        os.close(self._memory)


@on_ranks(2, timeout=120)
def test_more_than_2_31_elements(rank: Rank) -> None:
    memory = _Sparse(rank.rank + 1)
    try:
        arguments = {"count": _MANY, "dtype": "uint8"}
        if rank.rank == 0:
            rank.comm.send(memory.address, 1, **arguments)
        else:
            rank.comm.recv(memory.address, 0, **arguments)
        assert (memory.tail() == 1).all()
        assert memory.head() == 1
        memory.tail()[:] = 10 + rank.rank
        rank.comm.broadcast(memory.address, 1, **arguments)
        assert (memory.tail() == 11).all()
    finally:
        memory.close()
