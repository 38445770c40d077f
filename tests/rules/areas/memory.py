"""Memory, registration and windows."""

from __future__ import annotations

import ctypes as c
from typing import Any

from tests.rules.rank import Rank, handle
from tests.rules.rule import rule, stricter


def _memory(rank: Rank, size: int = 1 << 16) -> c.c_void_p:
    memory = c.c_void_p()
    rank.need(rank.nccl.MemAlloc(c.byref(memory), size))
    return memory


@rule(
    "MemFree",
    "Memory can be allocated and freed without a communicator; NULL can be freed",
    nccl=["success", "success"],
)
def free(rank: Rank) -> list[str]:
    return [rank.nccl.MemFree(_memory(rank)), rank.nccl.MemFree(None)]


@rule(
    "CommRegister",
    "Any memory can be registered, including a part of it",
    nccl=["success", "set", "success", "success"],
)
def register(rank: Rank) -> list[str]:
    comm, memory, made = rank.create(), rank.cuda.memory(), rank.empty()
    codes = [rank.nccl.CommRegister(comm, memory, 4096, c.byref(made)), handle(made)]
    within, other = c.c_void_p((memory.value or 0) + 64), c.c_void_p()
    codes.append(rank.nccl.CommRegister(comm, within, 64, c.byref(other)))
    return [*codes, rank.nccl.CommDeregister(comm, made)]


@rule(
    "CommRegister",
    "Registering the same memory again returns the same handle, which must be deregistered twice",
    nccl=[True, "success", "success"],
)
def register_twice(rank: Rank) -> list[Any]:
    comm, memory = rank.create(), rank.cuda.memory()
    one, two = c.c_void_p(), c.c_void_p()
    rank.need(rank.nccl.CommRegister(comm, memory, 4096, c.byref(one)))
    rank.need(rank.nccl.CommRegister(comm, memory, 4096, c.byref(two)))
    codes = [rank.nccl.CommDeregister(comm, at) for at in (one, two)]
    return [one.value == two.value, *codes]


@rule(
    "CommDeregister",
    "Unknown and already deregistered handles are rejected; a NULL handle is accepted",
    nccl=["invalidUsage", "invalidArgument", "success", "success", "invalidUsage"],
)
def deregister(rank: Rank) -> list[str]:
    comm, made = rank.create(), c.c_void_p()
    rank.need(rank.nccl.CommRegister(comm, rank.cuda.memory(), 4096, c.byref(made)))
    return [
        rank.nccl.CommDeregister(comm, c.c_void_p(4711)),
        rank.nccl.CommDeregister(None, made),
        rank.nccl.CommDeregister(comm, None),
        rank.nccl.CommDeregister(comm, made),
        rank.nccl.CommDeregister(comm, made),
    ]


@rule(
    "CommDestroy",
    "A communicator can be destroyed with registrations",
    nccl=["success", "success"],
    first=21900,
)
def register_left(rank: Rank) -> list[str]:
    comm, memory = rank.create(), _memory(rank)
    rank.need(rank.nccl.CommRegister(comm, memory, 4096, c.byref(c.c_void_p())))
    return [rank.nccl.CommDestroy(comm), rank.nccl.MemFree(memory)]


# Windows

_SYMMETRIC = 1
_FLAGS = ["success", "invalidArgument", "invalidArgument"], "a later release may know the flag"


def _window(
    rank: Rank, comm: c.c_void_p, flags: int = _SYMMETRIC, size: int = 1 << 16
) -> tuple[c.c_void_p, str]:
    made = rank.empty()
    code = rank.nccl.CommWindowRegister(comm, _memory(rank, size), size, c.byref(made), flags)
    return made, code


@rule(
    "CommWindowRegister",
    "Memory of ncclMemAlloc can be registered as a window",
    nccl=["success", "set", "works", "success"],
    ranks=2,
)
def window(rank: Rank) -> list[str]:
    comm = rank.create()
    made, code = _window(rank, comm)
    return [code, handle(made), rank.works(comm), rank.nccl.CommWindowDeregister(comm, made)]


@rule(
    "CommWindowRegister",
    "ncclCommWindowRegister waits for all ranks",
    nccl="waits success",
    ranks=2,
)
def window_waits(rank: Rank) -> str:
    comm = rank.create()
    return rank.waits(lambda: _window(rank, comm)[1])


@rule(
    "CommWindowDeregister",
    "ncclCommWindowDeregister does not wait for the other ranks",
    nccl="returns success",
    ranks=2,
)
def window_deregister_waits(rank: Rank) -> str:
    comm = rank.create()
    made, code = _window(rank, comm)
    rank.need(code)
    return rank.waits(lambda: rank.nccl.CommWindowDeregister(comm, made))


@rule("CommWindowDeregister", "A NULL window can be deregistered", nccl="success")
def window_deregister_null(rank: Rank) -> str:
    return rank.nccl.CommWindowDeregister(rank.create(), None)


@rule(
    "CommWindowDeregister",
    "Deregistering a window twice is an internal error",
    nccl=["success", "internalError"],
    ranks=2,
    alone=True,
)
def window_deregister_twice(rank: Rank) -> list[str]:
    comm = rank.create()
    made, code = _window(rank, comm)
    rank.need(code)
    return [rank.nccl.CommWindowDeregister(comm, made) for _ in range(2)]


@rule(
    "CommWindowRegister",
    "Unknown flags are ignored",
    nccl=["success", "success", "success"],
    double=stricter(_FLAGS[0], _FLAGS[1]),
    host=stricter(_FLAGS[0], _FLAGS[1]),
)
def window_flags(rank: Rank) -> list[str]:
    comm = rank.create()
    return [_window(rank, comm, flags)[1] for flags in (2, 1024, -1)]


@rule(
    "CommWindowRegister",
    "A window of a non-blocking communicator is complete when the call returns",
    nccl=["success", "success", "set"],
    ranks=2,
)
def window_non_blocking(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    made, code = _window(rank, comm)
    return [code, rank.settle(comm), handle(made)]


@rule(
    "CommWindowRegister",
    "The same memory may be registered as two windows",
    nccl=["success", "success", "success", "success"],
    ranks=2,
)
def window_twice(rank: Rank) -> list[str]:
    comm, memory = rank.create(), _memory(rank)
    made = [rank.empty(), rank.empty()]
    codes = [
        rank.nccl.CommWindowRegister(comm, memory, 1 << 16, c.byref(at), _SYMMETRIC) for at in made
    ]
    return codes + [rank.nccl.CommWindowDeregister(comm, at) for at in made]


_NEVER = "NCCL never returns from the call"

for _name in ("Finalize", "Revoke"):

    def _after(rank: Rank, name: str = _name) -> str:
        comm = rank.connected()
        rank.meet()
        arguments = (comm, 0) if name == "Revoke" else (comm,)
        rank.need(getattr(rank.nccl, "Comm" + name)(*arguments))
        return _window(rank, comm)[1]

    rule(
        "CommWindowRegister",
        f"Registering a window after {_name.lower()} never returns",
        "hang",
        name=f"window_after_{_name.lower()}",
        ranks=2,
        devices=2,
        source="measured; ranks that cannot map each other's memory return (a GPU, 2.28.9)",
        alone=True,
        seconds=4,
        first=22807,
        double=stricter("invalidUsage", _NEVER),
        host=stricter("invalidUsage", _NEVER),
    )(_after)


@rule(
    "CommWindowRegister",
    "In a group the handle is set when the group ends; 2.28 does not write it earlier",
    nccl={
        "2.28": ["success", "untouched", "success", "set"],
        "2.30": ["success", "null", "success", "set"],
    },
    ranks=2,
    first=22800,
)
def window_in_group(rank: Rank) -> list[str]:
    comm, memory, made = rank.create(), _memory(rank), rank.empty()
    rank.nccl.GroupStart()
    code = rank.nccl.CommWindowRegister(comm, memory, 1 << 16, c.byref(made), _SYMMETRIC)
    return [code, handle(made), rank.nccl.GroupEnd(), handle(made)]


@rule(
    "CommWindowRegister",
    "NULL, empty and misaligned memory is rejected; 2.28 accepts the first two",
    nccl={
        "2.28": ["success", "success", "invalidArgument"],
        "2.30": ["invalidArgument", "invalidArgument", "invalidArgument"],
    },
    first=22800,
)
def window_arguments(rank: Rank) -> list[str]:
    comm, memory = rank.create(), _memory(rank)
    odd, out = c.c_void_p((memory.value or 0) + 1), c.byref(c.c_void_p())
    return [
        rank.nccl.CommWindowRegister(comm, None, 4096, out, _SYMMETRIC),
        rank.nccl.CommWindowRegister(comm, memory, 0, out, _SYMMETRIC),
        rank.nccl.CommWindowRegister(comm, odd, 64, out, _SYMMETRIC),
    ]


@rule(
    "CommDestroy",
    "A communicator can be destroyed with open windows",
    nccl=["success", "success"],
    ranks=2,
    first=22800,
)
def window_left(rank: Rank) -> list[str]:
    comm, memory = rank.create(), _memory(rank)
    out = c.byref(c.c_void_p())
    rank.need(rank.nccl.CommWindowRegister(comm, memory, 1 << 16, out, _SYMMETRIC))
    return [rank.nccl.CommDestroy(comm), rank.nccl.MemFree(memory)]


@rule(
    "WinGetUserPtr",
    "ncclWinGetUserPtr rejects NULL for the output, the window and the communicator",
    nccl=["success", "invalidArgument", "invalidArgument", "invalidArgument"],
    ranks=2,
)
def window_user_pointer(rank: Rank) -> list[str]:
    comm = rank.create()
    made, code = _window(rank, comm)
    rank.need(code)
    out = c.byref(c.c_void_p())
    return [
        rank.nccl.WinGetUserPtr(comm, made, out),
        rank.nccl.WinGetUserPtr(comm, made, None),
        rank.nccl.WinGetUserPtr(comm, None, out),
        rank.nccl.WinGetUserPtr(None, made, out),
    ]
