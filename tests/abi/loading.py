"""Loads a real libnccl.so.2 without a visible GPU, and calls the functions that work there.

Runs in a separate process: python loading.py LIBRARY VERSION RESULTS, with the NCCL_VERSION_CODE of
its nccl.h and the number of its result codes. Prints a line for each successful check, and exits at
the first failure.
"""

from __future__ import annotations

import ctypes
import sys

UNIQUE_ID_BYTES = 128
INVALID_ARGUMENT, INVALID_USAGE = 4, 5
API_MAGIC, SIM_INFO_MAGIC = 0xCAFEBEEF, 0x74685283


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


class SimInfo(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("estimated_time", ctypes.c_float),
    )


class EncryptionConfig(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("mode", ctypes.c_int),
        ("psk", ctypes.c_char_p),
    )


def require(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(message)
    print(message)


# These functions check in NCCL itself the behavior that test_simulate.py, test_params.py and
# test_encryption.py of tests/nccl require of hostnccl.


def check_simulation(lib: ctypes.CDLL, version: int) -> None:
    """Check which calls end a simulated group, and that an empty group has no estimate."""
    info = SimInfo(ctypes.sizeof(SimInfo), SIM_INFO_MAGIC, version, -1.0)
    simulate = lib.ncclGroupSimulateEnd
    require(simulate(ctypes.byref(info)) == INVALID_USAGE, "a simulation needs a group")
    for _ in range(2):
        lib.ncclGroupStart()
    codes = [simulate(ctypes.byref(info)) for _ in range(2)]
    require(codes == [0, 0] and info.estimated_time == -1, "empty groups have no estimate")
    info.magic = 1
    lib.ncclGroupStart()
    codes = [simulate(ctypes.byref(info)), lib.ncclGroupEnd()]
    require(codes == [INVALID_ARGUMENT, INVALID_USAGE], f"a wrong simInfo ends the group: {codes}")


def check_params(lib: ctypes.CDLL) -> None:
    """Check that each parameter can be read only as its own type."""
    table, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
    code = lib.ncclParamGetAllParameterKeys(ctypes.byref(table), ctypes.byref(count))
    keys = [table[i] for i in range(count.value)]
    require(code == 0 and b"NCCL_DEBUG" in keys, f"{count.value} parameters, NCCL_DEBUG among them")
    getters = [
        getattr(lib, f"ncclParamGet{name}")
        for name in ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "Str")
    ]
    most = 0
    for key in keys:
        handle, again = ctypes.c_void_p(), ctypes.c_void_p()
        lib.ncclParamBind(ctypes.byref(handle), key)
        lib.ncclParamBind(ctypes.byref(again), key)
        if not handle.value or handle.value != again.value:
            sys.exit(f"{key!r} is bound to {handle.value} and {again.value}")
        codes = [getter(handle, ctypes.byref(ctypes.c_uint64())) for getter in getters]
        if set(codes) - {0, INVALID_ARGUMENT}:
            sys.exit(f"{key!r} gives {codes}")
        most = max(most, codes.count(0))
    require(most == 1, "a parameter has at most one getter")
    code = lib.ncclParamBind(ctypes.byref(ctypes.c_void_p()), b"NOBODY_KNOWS_IT")
    require(code == INVALID_ARGUMENT, "an unknown parameter is refused")


def check_encryption(lib: ctypes.CDLL, version: int) -> None:
    """Check which keys are accepted."""

    def code(mode: int, psk: bytes | None, magic: int = API_MAGIC) -> int:
        config = EncryptionConfig(ctypes.sizeof(EncryptionConfig), magic, version, mode, psk)
        result: int = lib.ncclSetEncryption(ctypes.byref(config))
        return result

    refused = [code(0, None, 1), code(2, None), code(1, None), code(1, b"k" * 31)]
    require(set(refused) == {INVALID_ARGUMENT}, f"wrong encryption is refused: {refused}")
    accepted = [code(1, b"k" * 32), code(0, b"unused"), lib.ncclSetEncryption(None)]
    require(set(accepted) == {0}, f"right encryption is accepted: {accepted}")


def main(path: str, version: int, results: int) -> None:
    lib = ctypes.CDLL(path)
    lib.ncclGetErrorString.restype = ctypes.c_char_p
    lib.ncclGetLastError.restype = ctypes.c_char_p
    lib.ncclGetLastError.argtypes = [ctypes.c_void_p]

    found = ctypes.c_int()
    code = lib.ncclGetVersion(ctypes.byref(found))
    require(code == 0 and found.value == version, f"version {found.value}, its header {version}")

    # The byte after the ID shows whether the library writes beyond it.
    ids = []
    for _ in range(2):
        memory = (ctypes.c_ubyte * (UNIQUE_ID_BYTES + 1))(*[0xA5] * (UNIQUE_ID_BYTES + 1))
        code = lib.ncclGetUniqueId(ctypes.byref(memory))
        require(code == 0, f"ncclGetUniqueId gives {code}")
        ids.append(bytes(memory))
    written = all(any(one[i] != 0xA5 for one in ids) for i in range(UNIQUE_ID_BYTES))
    require(ids[0] != ids[1], "two unique ids differ")
    require(written and ids[0][-1] == 0xA5, f"a unique id has {UNIQUE_ID_BYTES} bytes")

    texts = [lib.ncclGetErrorString(code) for code in range(results + 1)]
    distinct = all(texts) and len(set(texts)) == results + 1
    require(distinct, f"{results} error strings and one for unknown codes: {texts}")

    for _ in range(2):
        require(lib.ncclGroupStart() == 0, "ncclGroupStart")
    for _ in range(2):
        require(lib.ncclGroupEnd() == 0, "ncclGroupEnd")
    require(lib.ncclGroupEnd() != 0, "ncclGroupEnd without a group is refused")

    if hasattr(lib, "ncclGroupSimulateEnd"):
        check_simulation(lib, version)
    if hasattr(lib, "ncclParamBind"):
        check_params(lib)
    if hasattr(lib, "ncclSetEncryption"):
        check_encryption(lib, version)

    comm = ctypes.c_void_p()
    unique_id = UniqueId.from_buffer_copy(ids[0][:UNIQUE_ID_BYTES])
    lib.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    code = lib.ncclCommInitRank(ctypes.byref(comm), 1, unique_id, 0)
    text = (lib.ncclGetLastError(None) or b"").decode(errors="replace").strip()
    require(
        code == 1 and comm.value is None and text != "",
        f"ncclCommInitRank without a GPU: code {code}, comm {comm.value}, last error {text!r}",
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
