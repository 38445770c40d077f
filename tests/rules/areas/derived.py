"""Communicators derived from another one: split, shrink and grow, and shared resources."""

from __future__ import annotations

import ctypes as c
from typing import Any

from tests.rules.api import UniqueId
from tests.rules.rank import Rank, handle
from tests.rules.rule import differs, rule, stricter

_NO_COLOR = -1
_LOSS = "hostnccl reports a lost operation on its stream"
_ABORT = 1  # NCCL_SHRINK_ABORT


def _place(rank: Rank, comm: c.c_void_p) -> list[int]:
    """The rank in a communicator and its number of ranks."""
    number, count = c.c_int(-1), c.c_int(-1)
    rank.nccl.CommUserRank(comm, c.byref(number))
    rank.nccl.CommCount(comm, c.byref(count))
    return [number.value, count.value]


# Split


@rule(
    "CommSplit",
    "Ranks of a child are ordered by key, then by their rank in the parent",
    nccl=[["success", True], ["success", False]],
    ranks=2,
)
def split_keys(rank: Rank) -> list[list[Any]]:
    comm, found = rank.create(), []
    for key in (3, -rank.rank):
        code, child = rank.split(comm, key=key)
        found.append([code, _place(rank, child)[0] == rank.rank])
    return found


@rule(
    "CommSplit",
    "Each color becomes a communicator",
    nccl=[["success", [0, 2]], ["success", [0, 1]], ["success", [1, 2]]],
    ranks=3,
)
def split_colors(rank: Rank) -> list[Any]:
    code, child = rank.split(rank.create(), rank.rank % 2)
    return [code, _place(rank, child)]


@rule(
    "CommSplit",
    "NCCL_SPLIT_NOCOLOR sets the handle to NULL, and the parent works",
    nccl=[["success", "set", "works"], ["success", "null", "works"]],
    ranks=2,
)
def split_no_color(rank: Rank) -> list[str]:
    comm = rank.create()
    code, child = rank.split(comm, _NO_COLOR if rank.rank else 0)
    return [code, handle(child), rank.works(comm)]


@rule(
    "CommSplit",
    "All ranks may pass NCCL_SPLIT_NOCOLOR; any other negative color is a valid color",
    nccl=[["success", "null"], ["success", "set"]],
    ranks=2,
)
def split_negative_color(rank: Rank) -> list[list[str]]:
    comm, found = rank.create(), []
    for color in (_NO_COLOR, -5):
        code, child = rank.split(comm, color)
        found.append([code, handle(child)])
    return found


@rule(
    "CommSplit",
    "A NULL communicator and a NULL pointer for the handle are rejected, the latter even with "
    "NCCL_SPLIT_NOCOLOR",
    nccl=["invalidArgument"] * 3,
)
def split_arguments(rank: Rank) -> list[str]:
    comm = rank.create()
    return [
        rank.nccl.CommSplit(None, 0, 0, c.byref(c.c_void_p()), None),
        rank.nccl.CommSplit(comm, 0, 0, None, None),
        rank.nccl.CommSplit(comm, _NO_COLOR, 0, None, None),
    ]


@rule("CommSplit", "A blocking split waits for all ranks", nccl="waits success", ranks=2)
def split_waits(rank: Rank) -> str:
    comm = rank.create()
    return rank.waits(lambda: rank.split(comm)[0])


@rule("CommSplit", "A rank with NCCL_SPLIT_NOCOLOR also waits", nccl="waits success", ranks=2)
def split_waits_without_color(rank: Rank) -> str:
    comm = rank.create()
    return rank.waits(lambda: rank.split(comm, rank.rank - 1)[0])


@rule("CommSplit", "A communicator of one rank can be split", nccl=["success", "works"])
def split_one_rank(rank: Rank) -> list[str]:
    code, child = rank.split(rank.create())
    return [code, rank.works(child)]


@rule(
    "CommSplit",
    "A split and an operation on the parent can share a group",
    nccl=["success", "success", "success", "done"],
    ranks=2,
)
def split_and_operation_in_group(rank: Rank) -> list[str]:
    comm = rank.create()
    rank.nccl.GroupStart()
    split, (operation, stream) = rank.split(comm)[0], rank.start(comm)
    return [split, operation, rank.nccl.GroupEnd(), rank.cuda.finish(stream)]


@rule(
    "CommSplit",
    "A split of a non-blocking communicator returns success with a NULL handle, which is set once "
    "the parent is no longer in progress",
    nccl=["success", "null", "success", "set", "success", "works"],
    ranks=2,
)
def split_non_blocking(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    code, child = rank.split(comm, key=rank.rank)
    codes = [code, handle(child), rank.settle(comm), handle(child)]
    return [*codes, rank.settle(child), rank.works(child)]


@rule(
    "CommSplit",
    "While a child is being created, its non-blocking parent is in progress and rejects "
    "operations, which since 2.24 fails both",
    nccl={
        "2.18": [["success", "inProgress", "invalidUsage", "invalidArgument", "success"]],
        "2.24": [
            ["success", "inProgress", "invalidArgument", "invalidArgument", "invalidArgument"]
        ],
    },
    ranks=2,
)
def split_non_blocking_parent(rank: Rank) -> list[list[str]] | None:
    comm = rank.create(blocking=0)
    rank.meet()
    if rank.rank:
        rank.hear("called")
        rank.split(comm)
        return None
    codes = [rank.split(comm)[0], rank.state(comm), rank.sum(comm), rank.count(comm)]
    rank.tell("called")
    return [[*codes, rank.settle(comm)]]


@rule(
    "CommSplit",
    "With NCCL_SPLIT_NOCOLOR, a split of a non-blocking communicator succeeds with a NULL handle",
    nccl=["success", "success", "null"],
    ranks=2,
)
def split_non_blocking_no_color(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    code, child = rank.split(comm, _NO_COLOR)
    return [code, rank.settle(comm), handle(child)]


@rule(
    "CommSplit",
    "After a split of a non-blocking communicator in a group, ncclGroupEnd returns inProgress",
    nccl=["success", "null", "inProgress", "success", "set"],
    ranks=2,
)
def split_non_blocking_in_group(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    rank.nccl.GroupStart()
    code, child = rank.split(comm)
    return [code, handle(child), rank.nccl.GroupEnd(), rank.settle(comm), handle(child)]


@rule(
    "CommSplit",
    "The parent decides whether a split blocks: a non-blocking child of a blocking "
    "parent is ready immediately",
    nccl=["success", "set", "success", "success"],
    ranks=2,
)
def split_to_non_blocking(rank: Rank) -> list[str]:
    comm = rank.create()
    code, child = rank.split(comm, blocking=0)
    return [code, handle(child), rank.state(comm), rank.state(child)]


@rule(
    "CommSplit",
    "A split of a non-blocking parent does not block even for a blocking child: its "
    "handle is NULL until it is ready",
    nccl=["success", "null", "success", "success"],
    ranks=2,
)
def split_to_blocking(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    code, child = rank.split(comm, blocking=1)
    return [code, handle(child), rank.settle(comm), rank.settle(child)]


@rule(
    "CommSplit",
    "Without a configuration a child of a non-blocking communicator is non-blocking",
    nccl=["success", "inProgress", "success"],
    ranks=2,
)
def split_inherits_blocking(rank: Rank) -> list[str]:
    comm = rank.create(blocking=0)
    code, child = rank.split(comm)
    rank.settle(comm)
    rank.settle(child)
    return [code, rank.nccl.CommFinalize(child), rank.settle(child)]


@rule(
    "CommSplit",
    "A child can be split after its parent is destroyed",
    nccl=["success", "success", "success", "works"],
    ranks=2,
)
def split_grandchild(rank: Rank) -> list[str]:
    comm = rank.create()
    first, child = rank.split(comm)
    destroyed = rank.nccl.CommDestroy(comm)
    second, grandchild = rank.split(child)
    return [first, destroyed, second, rank.works(grandchild)]


@rule(
    "CommSplit",
    "splitShare only in the child's configuration shares nothing: the child survives an "
    "abort of the parent",
    nccl=["success", "works", "success", "works"],
    ranks=2,
)
def split_share_of_child(rank: Rank) -> list[str]:
    comm = rank.create()
    code, child = rank.split(comm, splitShare=1)
    codes = [code, rank.works(child)]
    rank.meet()
    codes.append(rank.nccl.CommAbort(comm))
    rank.meet()
    return [*codes, rank.works(child)]


def _family(
    share: int,
    gone: str,
    end: str,
    nccl: Any,  # noqa: ANN401 - outcomes by release
    **options: Any,  # noqa: ANN401 - of rule()
) -> None:
    def probe(rank: Rank) -> list[str]:
        parent = rank.create(splitShare=share)
        code, child = rank.split(parent, key=rank.rank)
        rank.need(code)
        before = rank.works(child)
        ended, left = (parent, child) if gone == "parent" else (child, parent)
        rank.meet()
        code = getattr(rank.nccl, "Comm" + end)(ended)
        rank.meet()
        return [before, code, rank.works(left)]

    shared = "with" if share else "without"
    other = "child" if gone == "parent" else "parent"
    text = f"Whether the {other} works after {end.lower()} of the {gone}, {shared} shared resources"
    name = f"family_{end.lower()}_{gone}_share_{share}"
    rule("Comm" + end, text, nccl, name=name, ranks=2, **options)(probe)


_FAILS = stricter(
    ["works", "success", "internalError"],
    "in NCCL, operations end without a result, as if complete",
)
_WORKS = ["works", "success", "works"]
for _share in (0, 1):
    for _gone in ("parent", "child"):
        _family(_share, _gone, "Destroy", _WORKS)
_family(0, "parent", "Abort", _WORKS)
_family(0, "child", "Abort", _WORKS)
_family(1, "parent", "Abort", ["works", "success", "wrong result"], double=_FAILS, host=_FAILS)
_family(
    1,
    "child",
    "Abort",
    {"2.18": ["works", "success", "wrong result"], "2.24": ["works", "success", "internalError"]},
    double=_FAILS,
    host=_FAILS,
)

# Shrink


def _shrink(rank: Rank, comm: c.c_void_p, excluded: int, flags: int = 0) -> tuple[str, c.c_void_p]:
    """Call ncclCommShrink, and return its code and the child."""
    child = rank.empty()
    ranks = c.byref(c.c_int(excluded))
    return rank.nccl.CommShrink(comm, ranks, 1, c.byref(child), None, flags), child


@rule(
    "CommShrink",
    "The surviving ranks call ncclCommShrink and keep their order, and the parent still works",
    nccl=[["success", [0, 2], "works", "works"], ["success", [1, 2], "works", "works"]],
    ranks=3,
)
def shrink_default(rank: Rank) -> list[Any] | None:
    comm = rank.connected()
    found: list[Any] = []
    if rank.rank != 1:
        code, child = _shrink(rank, comm, 1)
        found = [code, _place(rank, child), rank.works(child)]
    rank.meet()
    works = rank.works(comm)
    return [*found, works] if found else None


@rule(
    "CommShrink",
    "NCCL_SHRINK_ABORT ends the pending operations of the parent, whose state is success",
    nccl=["pending", "success", "done", "works", "success"],
    ranks=3,
    host=stricter(
        ["pending", "success", "error", "works", "success"],
        "aborted work fails its stream",
    ),
)
def shrink_abort(rank: Rank) -> list[str] | None:
    comm = rank.connected()
    rank.meet()
    if rank.rank == 2:
        rank.meet()
        return None
    started, stream = rank.start(comm)
    rank.need(started)
    before = rank.cuda.finish(stream, 0.3)
    rank.meet()  # the shrink of one rank ends the operations of the others
    code, child = _shrink(rank, comm, 2, _ABORT)
    return [before, code, rank.cuda.finish(stream), rank.works(child), rank.state(comm)]


_GONE = stricter(
    ["success", "invalidUsage", "done"], "without the excluded ranks the operation never completes"
)


@rule(
    "CommShrink",
    "After NCCL_SHRINK_ABORT the parent still accepts operations",
    nccl=["success", "success", "pending"],
    ranks=3,
    double=_GONE,
    host=_GONE,
)
def shrink_abort_then_parent(rank: Rank) -> list[str] | None:
    comm = rank.connected()
    rank.meet()
    if rank.rank == 2:
        return None
    code, _ = _shrink(rank, comm, 2, _ABORT)
    operation, stream = rank.start(comm)
    return [code, operation, rank.cuda.finish(stream, 2)]


@rule(
    "CommShrink",
    "NCCL_SHRINK_DEFAULT leaves the parent's pending operations pending",
    nccl="pending",
    ranks=3,
    alone=True,
    host=differs("error", _LOSS),
)
def shrink_leaves_operation(rank: Rank) -> str | None:
    comm = rank.connected()
    rank.meet()
    if rank.rank == 2:
        rank.meet()
        return None
    _, stream = rank.start(comm)
    rank.meet()
    _shrink(rank, comm, 2)  # hostnccl may reject it while the operation is pending
    return rank.cuda.finish(stream, 2)


@rule(
    "CommShrink",
    "In a group the handle is NULL until the group ends",
    nccl=["success", "null", "success", "set"],
    ranks=3,
)
def shrink_in_group(rank: Rank) -> list[str] | None:
    comm = rank.create()
    if rank.rank == 2:
        return None
    rank.nccl.GroupStart()
    code, child = _shrink(rank, comm, 2)
    return [code, handle(child), rank.nccl.GroupEnd(), handle(child)]


@rule(
    "CommShrink",
    "A shrink of a non-blocking communicator returns success with a NULL handle",
    nccl=["success", "null", "success", "set", "success"],
    ranks=3,
)
def shrink_non_blocking(rank: Rank) -> list[str] | None:
    comm = rank.create(blocking=0)
    if rank.rank == 2:
        return None
    code, child = _shrink(rank, comm, 2)
    return [code, handle(child), rank.settle(comm), handle(child), rank.settle(child)]


def _refused_shrink(
    name: str,
    text: str,
    excluded: list[int] | None,
    count: int,
    *,
    flags: int = 0,
    ranks: int = 2,
) -> None:
    def probe(rank: Rank) -> list[str]:
        comm, child = rank.create(), rank.empty()
        array = None if excluded is None else (c.c_int * max(1, len(excluded)))(*excluded)
        code = rank.nccl.CommShrink(comm, array, count, c.byref(child), None, flags)
        return [code, handle(child), rank.works(comm)]

    outcome = ["invalidArgument", "untouched", "works"]
    text = f"{text} is rejected before the handle is written, and the parent still works"
    rule("CommShrink", text, outcome, name=f"shrink_{name}", ranks=ranks)(probe)


_refused_shrink("nobody", "Excluding no ranks", [], 0)
_refused_shrink("null_list", "A NULL list with a count of 1", None, 1)
_refused_shrink("negative_count", "A negative count", [1], -1)
_refused_shrink("everybody", "Excluding all ranks", [0, 1], 2)
_refused_shrink("itself", "Excluding the caller", [0, 1], 1, ranks=1)
_refused_shrink("too_many", "A list longer than the communicator", [0, 1, 1], 3)
_refused_shrink("flags", "An unknown flag", [], 0, flags=2)


@rule("CommShrink", "A NULL pointer for the handle is rejected", nccl="invalidArgument")
def shrink_null_handle(rank: Rank) -> str:
    return rank.nccl.CommShrink(rank.create(), (c.c_int * 1)(0), 1, None, None, 0)


@rule(
    "CommShrink",
    "The list of ranks need not be sorted; the call sorts it in place",
    nccl=["success", [0, 1], [0, 2]],
    ranks=3,
)
def shrink_not_sorted(rank: Rank) -> list[Any] | None:
    comm, child, excluded = rank.create(), rank.empty(), (c.c_int * 2)(2, 0)
    if rank.rank != 1:
        return None
    code = rank.nccl.CommShrink(comm, excluded, 2, c.byref(child), None, 0)
    return [code, _place(rank, child), list(excluded)]


# Grow


def _grow(rank: Rank, old: int, new: c.c_void_p) -> tuple[c.c_void_p | None, str]:
    """Grow a communicator of the first ranks by the other ranks."""
    unique_id = UniqueId()
    if rank.rank >= old:
        data = rank.hear("grow")
        assert data is not None
        unique_id = UniqueId.from_buffer_copy(data)
        code = rank.nccl.CommGrow(
            None, rank.size, c.byref(unique_id), rank.rank, c.byref(new), None
        )
        return None, code
    comm = c.c_void_p()
    rank.need(rank.init(comm, old))
    place = None
    if rank.rank == 0:
        rank.need(rank.nccl.CommGetUniqueId(comm, c.byref(unique_id)))
        rank.tell("grow", bytes(unique_id))
        place = c.byref(unique_id)
    return comm, rank.nccl.CommGrow(comm, rank.size, place, -1, c.byref(new), None)


@rule(
    "CommGrow",
    "Existing ranks keep their numbers, and the parent still works",
    nccl=[
        ["success", [0, 3], "works", "works"],
        ["success", [1, 3], "works", "works"],
        ["success", [2, 3], "works"],
    ],
    ranks=3,
)
def grow_by_one(rank: Rank) -> list[Any]:
    new = rank.empty()
    comm, code = _grow(rank, 2, new)
    found = [code, _place(rank, new), rank.works(new)]
    return [*found, rank.works(comm)] if comm else found


@rule(
    "CommGetUniqueId",
    "ncclCommGetUniqueId rejects a NULL communicator and a NULL ID pointer, and succeeds "
    "afterwards",
    nccl=["invalidArgument", "invalidArgument", "success"],
)
def grow_id(rank: Rank) -> list[str]:
    comm, unique_id = rank.create(), UniqueId()
    return [
        rank.nccl.CommGetUniqueId(comm, None),
        rank.nccl.CommGetUniqueId(None, c.byref(unique_id)),
        rank.nccl.CommGetUniqueId(comm, c.byref(unique_id)),
    ]


@rule(
    "CommGrow",
    "Invalid rank counts, ranks and IDs are rejected",
    nccl=["invalidArgument"] * 6,
)
def grow_arguments(rank: Rank) -> list[str]:
    comm, new, made = rank.create(), rank.empty(), UniqueId()
    rank.need(rank.nccl.CommGetUniqueId(comm, c.byref(made)))
    at, out = c.byref(made), c.byref(new)
    return [
        rank.nccl.CommGrow(comm, 1, at, -1, out, None),  # does not grow
        rank.nccl.CommGrow(None, 0, at, 0, out, None),
        rank.nccl.CommGrow(comm, 2, at, 0, out, None),  # an existing rank with a number
        rank.nccl.CommGrow(None, 2, at, -1, out, None),  # a new rank without one
        rank.nccl.CommGrow(None, 2, None, 1, out, None),
        rank.nccl.CommGrow(None, 2, at, 2, out, None),
    ]
