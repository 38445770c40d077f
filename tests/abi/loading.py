"""Loads a real libnccl.so.2 without a visible GPU, and calls the functions that work there.

Runs in a separate process: python -m tests.abi.loading LIBRARY VERSION RESULTS, with the
NCCL_VERSION_CODE of its nccl.h and the number of its result codes. Prints a line for each
successful check, and exits at the first failure.
"""

from __future__ import annotations

import ctypes
import sys

from tests.rules.api import Nccl, SimInfo, UniqueId

UNIQUE_ID_BYTES = ctypes.sizeof(UniqueId)
API_MAGIC, SIM_INFO_MAGIC = 0xCAFEBEEF, 0x74685283


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


def check_simulation(nccl: Nccl) -> None:
    """Check which calls end a simulated group, and that an empty group has no estimate."""
    info = SimInfo(ctypes.sizeof(SimInfo), SIM_INFO_MAGIC, nccl.version, -1.0)
    simulate = nccl.GroupSimulateEnd
    require(simulate(ctypes.byref(info)) == "invalidUsage", "a simulation needs a group")
    for _ in range(2):
        nccl.GroupStart()
    codes = [simulate(ctypes.byref(info)) for _ in range(2)]
    good = codes == ["success"] * 2 and info.estimatedTime == -1
    require(good, "empty groups have no estimate")
    info.magic = 1
    nccl.GroupStart()
    codes = [simulate(ctypes.byref(info)), nccl.GroupEnd()]
    good = codes == ["invalidArgument", "invalidUsage"]
    require(good, f"a wrong simInfo ends the group: {codes}")


def check_params(nccl: Nccl) -> None:
    """Check that each parameter can be read only as its own type."""
    table, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
    code = nccl.ParamGetAllParameterKeys(ctypes.byref(table), ctypes.byref(count))
    keys = [table[i] for i in range(count.value)]
    good = code == "success" and b"NCCL_DEBUG" in keys
    require(good, f"{count.value} parameters, NCCL_DEBUG among them")
    getters = [
        getattr(nccl, f"ParamGet{name}")
        for name in ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "Str")
    ]
    most = 0
    for key in keys:
        handle, again = ctypes.c_void_p(), ctypes.c_void_p()
        nccl.ParamBind(ctypes.byref(handle), key)
        nccl.ParamBind(ctypes.byref(again), key)
        if not handle.value or handle.value != again.value:
            sys.exit(f"{key!r} is bound to {handle.value} and {again.value}")
        codes = [getter(handle, ctypes.byref(ctypes.c_uint64())) for getter in getters]
        if set(codes) - {"success", "invalidArgument"}:
            sys.exit(f"{key!r} gives {codes}")
        most = max(most, codes.count("success"))
    require(most == 1, "a parameter has at most one getter")
    code = nccl.ParamBind(ctypes.byref(ctypes.c_void_p()), b"NOBODY_KNOWS_IT")
    require(code == "invalidArgument", "an unknown parameter is refused")


def check_encryption(nccl: Nccl) -> None:
    """Check which keys are accepted."""

    def code(mode: int, psk: bytes | None, magic: int = API_MAGIC) -> str:
        size = ctypes.sizeof(EncryptionConfig)
        config = EncryptionConfig(size, magic, nccl.version, mode, psk)
        return nccl.SetEncryption(ctypes.byref(config))

    refused = [code(0, None, 1), code(2, None), code(1, None), code(1, b"k" * 31)]
    require(set(refused) == {"invalidArgument"}, f"wrong encryption is refused: {refused}")
    accepted = [code(1, b"k" * 32), code(0, b"unused"), nccl.SetEncryption(None)]
    require(set(accepted) == {"success"}, f"right encryption is accepted: {accepted}")


def main(path: str, version: int, results: int) -> None:
    lib = ctypes.CDLL(path)
    nccl = Nccl(lib)
    require(nccl.version == version, f"version {nccl.version}, its header {version}")

    # The byte after the ID shows whether the library writes beyond it.
    ids = []
    for _ in range(2):
        memory = (ctypes.c_ubyte * (UNIQUE_ID_BYTES + 1))(*[0xA5] * (UNIQUE_ID_BYTES + 1))
        code = nccl.GetUniqueId(ctypes.byref(memory))
        require(code == "success", f"ncclGetUniqueId gives {code}")
        ids.append(bytes(memory))
    written = all(any(one[i] != 0xA5 for one in ids) for i in range(UNIQUE_ID_BYTES))
    require(ids[0] != ids[1], "two unique ids differ")
    require(written and ids[0][-1] == 0xA5, f"a unique id has {UNIQUE_ID_BYTES} bytes")

    texts = [nccl.text("GetErrorString", code) for code in range(results + 1)]
    distinct = all(texts) and len(set(texts)) == results + 1
    require(distinct, f"{results} error strings and one for unknown codes: {texts}")

    for _ in range(2):
        require(nccl.GroupStart() == "success", "ncclGroupStart")
    for _ in range(2):
        require(nccl.GroupEnd() == "success", "ncclGroupEnd")
    require(nccl.GroupEnd() != "success", "ncclGroupEnd without a group is refused")

    if hasattr(lib, "ncclGroupSimulateEnd"):
        check_simulation(nccl)
    if hasattr(lib, "ncclParamBind"):
        check_params(nccl)
    if hasattr(lib, "ncclSetEncryption"):
        check_encryption(nccl)

    comm = ctypes.c_void_p()
    unique_id = UniqueId.from_buffer_copy(ids[0])
    code = nccl.CommInitRank(ctypes.byref(comm), 1, unique_id, 0)
    text = nccl.text("GetLastError", None).strip()
    require(
        code == "unhandledCudaError" and comm.value is None and text != "",
        f"ncclCommInitRank without a GPU: code {code}, comm {comm.value}, last error {text!r}",
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
