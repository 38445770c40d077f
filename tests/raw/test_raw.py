"""Proves that pynccl.raw provides every function of nccl.h with its name and C types, by calling
them on hostnccl, and that the error for a missing function names the version that added it.

`make abi` checks the list of functions against real headers.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl, raw
from pynccl.errors import (
    LibraryNotFoundError,
    MissingFunctionError,
    NcclInvalidArgumentError,
    NcclInvalidUsageError,
)
from pynccl.libraries import PROVIDERS
from tests.support.blocking import in_threads
from tests.support.commands import run_command
from tests.support.old_nccl import compile_nccl
from tests.support.tier import FULL


def test_parameters_are_named_as_in_nccl_h() -> None:
    signature = inspect.signature(raw.Library.ncclAllReduce)
    names = ["self", "sendbuff", "recvbuff", "count", "datatype", "op", "comm", "stream"]
    assert list(signature.parameters) == names
    assert "ncclResult_t ncclAllReduce(" in (raw.Library.ncclAllReduce.__doc__ or "")
    # Output pointers of C are results, so they are not parameters.
    assert list(inspect.signature(raw.Library.ncclCommInitRank).parameters) == [
        "self", "nranks", "commId", "rank",
    ]  # fmt: skip
    for name in raw.load("host").functions():
        assert "and newer." in (getattr(raw.Library, name).__doc__ or ""), name


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    lib = raw.load(compile_nccl(tmp_path, 21805))
    missing = {name for name, (_, present) in lib.functions().items() if not present}
    assert missing == lib.functions().keys() - {"ncclGetVersion"}
    for name in missing:
        since, _ = lib.functions()[name]
        parameters = list(inspect.signature(getattr(raw.Library, name)).parameters)[1:]
        values = [_value(name, parameter) for parameter in parameters]
        version = f"{since // 10000}.{since // 100 % 100}.{since % 100}"
        with pytest.raises(MissingFunctionError) as caught:
            getattr(lib, name)(*values)
        text = str(caught.value)
        assert f"{name} needs NCCL {version}; the loaded {lib.path} (version 2.18.5" in text


def _value(function: str, parameter: str) -> object:
    """A value of the correct type for a parameter of any function."""
    structs = {
        "simInfo": raw.ncclSimInfo_t,
        "devComm": raw.ncclDevComm_t,
        "multimem": raw.ncclMultimemHandle_t,
        "outReq": raw.ncclDevResourceRequirements_t,
        "props": raw.ncclCommProperties_t,
        "reqs": raw.ncclDevCommRequirements_t,
        "team": raw.ncclTeam_t,
        "cftTeam": raw.ncclTeam_t,
    }
    if parameter in structs:
        return structs[parameter]()
    if parameter == "outHandle":
        return getattr(raw, function.removesuffix("CreateRequirement") + "Handle_t")()
    if parameter == "key" and function.startswith("ncclParam"):
        return "NCCL_DEBUG"
    if parameter == "commId":
        return bytes(128)
    pointers = ("config", "signalDescs", "excludeRanksList", "uniqueId", "commIds", "devlist")
    if parameter in pointers:
        return None
    return 0


def _call_everything(lib: raw.Library, rank: int, unique_id: raw.UniqueId) -> None:  # noqa: PLR0915
    """Every two-sided function, as rank 0 or 1 of two."""
    comm = lib.ncclCommInitRank(2, unique_id, rank)
    assert lib.ncclCommCount(comm) == 2
    assert lib.ncclCommUserRank(comm=comm) == rank
    assert lib.ncclCommCuDevice(comm) == 0
    assert lib.ncclCommGetAsyncError(comm) == raw.ncclSuccess
    assert lib.ncclGetLastError(comm) is not None

    dtype = raw.ncclFloat32
    send = np.array([rank + 1.0, rank + 2.0], np.float32)
    out = np.zeros(4, np.float32)

    def check(*expected: float) -> None:
        np.testing.assert_array_equal(out[: len(expected)], np.array(expected, np.float32))
        out[:] = 0

    s, r = send.ctypes.data, out.ctypes.data
    assert lib.ncclAllReduce(s, r, 2, dtype, raw.ncclSum, comm, 0) is None
    check(3, 5)
    lib.ncclReduce(s, r, 2, dtype, raw.ncclMax, 1, comm, None)
    check(*((2, 3) if rank == 1 else (0, 0)))
    lib.ncclBroadcast(s, r, 2, dtype, 1, comm, 0)
    check(2, 3)
    lib.ncclBcast(r, 4, dtype, 0, comm, 0)
    check(0, 0, 0, 0)
    lib.ncclAllGather(s, r, 2, dtype, comm, 0)
    check(1, 2, 2, 3)
    lib.ncclReduceScatter(s, r, 1, dtype, raw.ncclProd, comm, 0)
    check(2 if rank == 0 else 6)
    lib.ncclAlltoAll(s, r, 1, dtype, comm, 0)
    check(*((1, 2) if rank == 0 else (2, 3)))
    lib.ncclGather(s, r, 2, dtype, 0, comm, 0)
    check(*((1, 2, 2, 3) if rank == 0 else (0, 0)))
    lib.ncclScatter(s, r, 1, dtype, 0, comm, 0)
    check(1 if rank == 0 else 2)
    lib.ncclGroupStart()
    lib.ncclSend(s, 2, dtype, 1 - rank, comm, 0)
    lib.ncclRecv(r, 2, dtype, 1 - rank, comm, 0)
    lib.ncclGroupEnd()
    check(*((2, 3) if rank == 0 else (1, 2)))

    scalar = np.array([0.5], np.float32)
    op = lib.ncclRedOpCreatePreMulSum(scalar.ctypes.data, dtype, raw.ncclScalarHostImmediate, comm)
    lib.ncclAllReduce(s, r, 2, dtype, op, comm, 0)
    check(1.5, 2.5)
    lib.ncclRedOpDestroy(op, comm)

    memory = lib.ncclMemAlloc(4096)
    handle = lib.ncclCommRegister(comm, memory, 4096)
    lib.ncclAllReduce(memory, memory, 1024, dtype, raw.ncclSum, comm, 0)
    lib.ncclCommDeregister(comm, handle)
    window = lib.ncclCommWindowRegister(comm, memory, 4096, raw.NCCL_WIN_COLL_SYMMETRIC)
    assert lib.ncclWinGetUserPtr(comm, window) == memory
    ctypes.memset(memory, rank + 1, 8)
    lib.ncclPutSignal(memory, 2, dtype, 1 - rank, window, 8, 0, 0, 0, comm, 0)
    lib.ncclSignal(1 - rank, 0, 0, 0, comm, 0)
    lib.ncclWaitSignal(1, [raw.ncclWaitSignalDesc_t(opCnt=2, peer=1 - rank)], comm, 0)
    assert ctypes.string_at(memory, 16) == bytes(8 * [rank + 1] + 8 * [2 - rank])
    lib.ncclCommWindowDeregister(comm, window)
    lib.ncclMemFree(memory)

    config = raw.ncclConfig_t()
    config.commName = "child"
    child = lib.ncclCommSplit(comm, 0, -rank, config)
    assert lib.ncclCommUserRank(child) == 1 - rank
    lib.ncclCommFinalize(child)
    lib.ncclCommDestroy(child)
    assert (
        lib.ncclCommSplit(comm, -1, 0, None) == 0 if rank else lib.ncclCommSplit(comm, 1, 0, None)
    )

    next_id = np.zeros(128, np.uint8)
    if rank == 0:
        next_id[:] = np.frombuffer(bytes(lib.ncclGetUniqueId()), np.uint8)
    lib.ncclBcast(next_id.ctypes.data, 128, raw.ncclUint8, 0, comm, 0)
    again = lib.ncclCommInitRankConfig(2, next_id, rank, raw.ncclConfig_t())
    lib.ncclCommAbort(again)
    lib.ncclCommDestroy(comm)


def test_every_function_of_a_communicator_works() -> None:
    lib = raw.load("host")
    unique_id = lib.ncclGetUniqueId()
    in_threads(*(partial(_call_everything, lib, rank, unique_id) for rank in (0, 1)))


def test_functions_without_a_communicator() -> None:
    lib = raw.load("host")
    assert lib.ncclGetVersion() == lib.version
    assert lib.ncclGetErrorString(raw.ncclInvalidUsage) == "invalid usage"
    assert isinstance(lib.ncclGetLastError(None), str)
    assert lib.ncclResetDebugInit() is None
    comms = lib.ncclCommInitAll(3, [0, 0, 0])
    assert [lib.ncclCommUserRank(comm) for comm in comms] == [0, 1, 2]
    for comm in comms:
        lib.ncclCommDestroy(comm)
    comms = lib.ncclCommInitAll(2, None)
    for comm in comms:
        lib.ncclCommAbort(comm)
    unique_id = lib.ncclGetUniqueId()
    comm = lib.ncclCommInitRankScalable(1, 0, 1, [unique_id], None)
    lib.ncclCommDestroy(comm)


def test_results_are_raised() -> None:
    lib = raw.load("host")
    with pytest.raises(NcclInvalidArgumentError, match=r"comm=0x7 is not a communicator") as caught:
        lib.ncclCommCount(7)
    assert (caught.value.code, caught.value.function) == (4, "ncclCommCount")
    with pytest.raises(NcclInvalidArgumentError):
        lib.ncclCommCount(None)
    with pytest.raises(NcclInvalidUsageError, match="ncclGroupEnd without"):
        lib.ncclGroupEnd()


def test_wrong_types_are_refused() -> None:
    lib = raw.load("host")
    unique_id, create = lib.ncclGetUniqueId(), lib.ncclCommInitAll
    wrong: list[tuple[Any, ...]] = [
        (TypeError, "comm: expected an integer, got 'x'", lib.ncclCommCount, "x"),
        (TypeError, r"ncclCommCount\(\) missing required argument 'comm'", lib.ncclCommCount),
        (TypeError, "takes at most 1", lib.ncclCommCount, 1, 2),
        (ValueError, "nranks: 2147483648 does not fit", lib.ncclCommInitRank, 2**31, unique_id, 0),
        (TypeError, "config", lib.ncclCommInitRankConfig, 1, unique_id, 0, "config"),
        (ValueError, "devlist: has 1 items, ndev is 2", create, 2, [0]),
        (ValueError, "ndev: -1", create, -1, None),
        (TypeError, "devlist: expected a sequence or None, got 5", create, 2, 5),
    ]
    for error, text, function, *arguments in wrong:
        with pytest.raises(error, match=text):
            function(*arguments)
    with pytest.raises(TypeError, match="unexpected keyword argument 'com'"):
        lib.ncclCommCount(com=1)
    older = raw.ncclDevCommRequirements_t()
    older.version, older.ginQueueDepth = 22902, 2
    text = r"reqs\.ginQueueDepth needs NCCL 2\.29\.7, the version of the struct is 2\.29\.2"
    with pytest.raises(ValueError, match=text):
        lib.ncclDevCommCreate(0, older)


def test_enums_have_the_values_of_nccl_h() -> None:
    assert [int(value) for value in raw.ncclResult_t] == list(range(9))
    assert [int(value) for value in raw.ncclRedOp_t] == list(range(5))
    types = "Int8 Uint8 Int32 Uint32 Int64 Uint64 Float16 Float32 Float64 Bfloat16"
    types += " Float8e4m3 Float8e5m2"
    for number, name in enumerate(types.split()):
        value = raw.ncclDataType_t(number)
        assert value.name == f"nccl{name}"
        assert getattr(raw, value.name) is value
    assert (raw.ncclScalarDevice, raw.ncclScalarHostImmediate) == (0, 1)
    assert [int(value) for value in raw.ncclCommMemStat_t] == [0, 1, 2, 3]
    assert (raw.NCCL_UNIQUE_ID_BYTES, raw.NCCL_SPLIT_NOCOLOR) == (128, -1)


def test_structs_are_initialized_like_nccls() -> None:
    config = raw.ncclConfig_t()
    assert config.magic == 0xCAFEBEEF
    assert config.version == raw.load("host").version
    assert config.size > 100
    assert config.blocking == config.minCTAs == raw.NCCL_CONFIG_UNDEF_INT
    assert config.netName is None
    config.netName, config.minCTAs = "Socket", 4
    assert (config.netName, config.minCTAs) == ("Socket", 4)
    with pytest.raises(TypeError):
        config.minCTAs = "4"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="expected a str, bytes or None, got 5"):
        config.netName = 5  # type: ignore[assignment]
    coll = raw.ncclCollConfig_t()
    assert (coll.magic, coll.ext, coll.userProfilerTag) == (0xCAFEBEEF, 0, 0)
    coll.algSelection = "ring"
    assert coll.algSelection == "ring"
    info = raw.ncclSimInfo_t()
    assert (info.magic, info.estimatedTime) == (0x74685283, -1.0)
    signal = raw.ncclWaitSignalDesc_t(opCnt=3, peer=1)
    assert (signal.opCnt, signal.peer, signal.sigIdx, signal.ctx) == (3, 1, 0, 0)
    encryption = raw.ncclEncryptionConfig_t()
    assert (encryption.magic, encryption.mode, encryption.psk) == (0xCAFEBEEF, 0, None)


def _requirements(alignment: int) -> tuple[raw.ncclDevCommRequirements_t, object]:
    """Requirements with one resource of an alignment, and the objects that they refer to."""
    resource, handle = raw.ncclDevResourceRequirements_t(), ctypes.c_uint32()
    resource.bufferSize, resource.bufferAlign = 64, alignment
    resource.outBufferHandle = ctypes.addressof(handle)
    requirements = raw.ncclDevCommRequirements_t()
    requirements.resourceRequirementsList = resource.address()
    return requirements, (resource, handle)


def test_hostnccl_refuses_wrong_arguments() -> None:
    lib = raw.load("host")
    comm, other = (lib.ncclCommInitRank(1, lib.ncclGetUniqueId(), 0) for _ in range(2))
    memory, dtype = lib.ncclMemAlloc(8192), raw.ncclFloat32
    symmetric = raw.NCCL_WIN_COLL_SYMMETRIC
    window, foreign = (
        lib.ncclCommWindowRegister(c, memory, 4096, symmetric) for c in (comm, other)
    )
    beside = memory + 64
    unaligned, _kept = _requirements(alignment=3)

    def put(win: int, offset: int = 0) -> object:
        return lib.ncclPutSignal(memory, 2, dtype, 0, win, offset, 0, 0, 0, comm, 0)

    def sum_up(count: int, stream: int) -> object:
        return lib.ncclAllReduce(memory, memory, count, dtype, raw.ncclSum, comm, stream)

    def exchange() -> object:
        return lib.ncclAlltoAll(memory, memory, 1, dtype, comm, 0)

    unset, properties = raw.ncclWaitSignalDesc_t(opCnt=0, peer=0), raw.ncclCommProperties_t()
    config, multimem = raw.ncclConfig_t(), raw.ncclMultimemHandle_t()
    properties.size, config.magic = 8, 1
    gin_only = symmetric | raw.NCCL_WIN_GIN_ONLY
    create, unique_id = lib.ncclCommInitRankConfig, lib.ncclGetUniqueId()
    wrong: list[tuple[Any, ...]] = [
        ("ncclAlltoAll does not work in place", exchange),
        ("count=4611686018427387904 x float32 for 1 ranks exceeds", sum_up, 2**62, 0),
        ("stream=0x3039 is not a stream of hostnccl", sum_up, 1, 12345),
        ("is not a window, or was deregistered", put, memory),
        ("is a window of another communicator", put, foreign),
        ("peerWinOffset=4092 with count=2 x float32 does not fit", put, window, 4092),
        (r"signalDescs\[0\].opCnt=0 is below 1", lib.ncclWaitSignal, 1, [unset], comm, 0),
        ("winFlags=0x5: .* combined", lib.ncclCommWindowRegister, comm, beside, 64, gin_only),
        ("props->size=8 is below 40", lib.ncclCommQueryProperties, comm, properties),
        ("NCCL_CONFIG_INITIALIZER", create, 1, unique_id, 0, config),
        ("bufferAlign=3 is not a power of two", lib.ncclDevCommCreate, comm, unaligned),
        ("was not allocated by ncclMemAlloc", lib.ncclMemFree, beside),
        ("size=9223372036854775808 exceeds", lib.ncclMemAlloc, 2**63),
        ("multimem.mcBasePtr", lib.ncclGetMultimemDevicePointer, window, 0, multimem),
    ]
    for text, function, *arguments in wrong:
        with pytest.raises(NcclInvalidArgumentError, match=text):
            function(*arguments)
    for owner, win in ((comm, window), (other, foreign)):
        lib.ncclCommWindowDeregister(owner, win)
        lib.ncclCommDestroy(owner)
    lib.ncclMemFree(memory)


def test_pointer_attributes_of_hostnccls_memory() -> None:
    """For clients of the CUDA driver. pynccl queries memory on GPUs only."""
    driver, lib = ctypes.CDLL(raw.load("host").path), raw.load("host")
    memory, answer = lib.ncclMemAlloc(4096), ctypes.c_uint(7)
    memory_type, range_start, ordinal = 2, 11, 9  # CU_POINTER_ATTRIBUTE_*

    def attribute(number: int, address: int) -> int:
        result: int = driver.hostPointerGetAttribute(
            ctypes.byref(answer), number, ctypes.c_uint64(address)
        )
        return result

    assert (attribute(memory_type, memory), answer.value) == (0, 1)  # CU_MEMORYTYPE_HOST
    assert (attribute(ordinal, memory), answer.value) == (0, 0)
    assert attribute(memory_type, 0) == 1  # CUDA_ERROR_INVALID_VALUE
    assert attribute(range_start, memory) == 801  # CUDA_ERROR_NOT_SUPPORTED
    lib.ncclMemFree(memory)


def test_load(tmp_path: Path) -> None:
    lib = raw.load("host")
    assert raw.load("host") is lib
    assert raw.load(lib.path) is lib
    assert raw.load(Path(lib.path)) is lib
    assert raw.load(lib.path) is raw.load("host")
    assert lib.memory == "host"
    assert repr(lib) == f"<pynccl.raw.Library 2.32.{lib.version % 100} {lib.path}>"
    with pytest.raises(ValueError, match="provider: 'gpu' is neither 'cuda' nor 'host' nor a path"):
        raw.load("gpu")
    with pytest.raises(TypeError, match="provider: expected 'cuda', 'host' or a path, got 0"):
        nccl.Stream(0)  # type: ignore[arg-type]
    with pytest.raises(LibraryNotFoundError, match=r"/nowhere/libnccl\.so\.2"):
        raw.load("/nowhere/libnccl.so.2")
    text = tmp_path / "libnccl.so.2"
    text.write_text("no library")
    with pytest.raises(LibraryNotFoundError, match=str(text)):
        raw.load(text)
    with pytest.raises(LibraryNotFoundError, match="ncclGetVersion is missing"):
        raw.load(_some_library())
    with pytest.raises(TypeError):
        raw.load(3)
    assert set(PROVIDERS) == {"cuda", "host"}


def _some_library() -> str:
    """A shared library that is loaded in every process and is not NCCL."""
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if re.search(r"/libc[.-].*so", line))


_LATE_HANDLES = """
static void** handles;
static int count;
int ncclGroupStart() { return 0; }
int ncclCommInitAll(void** comms, int n, const int* devices) {
  handles = comms;
  count = n;
  return 0;
}
int ncclGroupEnd() {
  for (int i = 0; i < count; ++i) handles[i] = (void*)-1;
  return 0;
}
"""


def test_the_end_of_a_group_writes_handles(tmp_path: Path) -> None:
    """Into memory that is not reused before."""
    library = raw.load(compile_nccl(tmp_path, 23200, _LATE_HANDLES))
    library.ncclGroupStart()
    assert library.ncclCommInitAll(256, None) == [0] * 256
    others = [np.zeros(256, np.uint64) for _ in range(64)]
    library.ncclGroupEnd()
    assert not any(other.any() for other in others)


_FORK_WHILE_CALLS_FAIL = """
import os, signal, sys, threading
from pynccl import libraries
library = libraries.load("host")
def fail():
    try:
        library.ncclCommCount(0)
    except RuntimeError:
        pass
def fail_for_ever():
    while True:
        fail()
for _ in range(3):
    threading.Thread(target=fail_for_ever, daemon=True).start()
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        fail()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_calls_fail_in_forks_while_others_fail_in_the_parent() -> None:
    count = 5000 if FULL else 300
    command = [sys.executable, "-W", "ignore", "-c", _FORK_WHILE_CALLS_FAIL, str(count)]
    done = run_command(command, Path.cwd(), os.environ, 120)
    assert done.returncode == 0, done.stderr
