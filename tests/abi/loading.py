"""Loads one real libnccl.so.2 where no GPU is to be seen, and calls what works there.

Run in a process of its own: python loading.py LIBRARY VERSION RESULTS, with the NCCL_VERSION_CODE
of its nccl.h and the number of its result codes. Prints one line for each thing that was found
right; ends with the first that is not.
"""

from __future__ import annotations

import ctypes
import sys

UNIQUE_ID_BYTES = 128


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


def require(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(message)
    print(message)


def main(path: str, version: int, results: int) -> None:
    lib = ctypes.CDLL(path)
    lib.ncclGetErrorString.restype = ctypes.c_char_p
    lib.ncclGetLastError.restype = ctypes.c_char_p
    lib.ncclGetLastError.argtypes = [ctypes.c_void_p]

    found = ctypes.c_int()
    code = lib.ncclGetVersion(ctypes.byref(found))
    require(code == 0 and found.value == version, f"version {found.value}, its header {version}")

    # The byte after the id shows how much the library writes.
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
