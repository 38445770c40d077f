"""Proves that the mirror's functions behave like torch.distributed's on a rank outside the group:
the same result, the same warning, the same class of exception.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist

from tests.support.ranks import on_ranks

_NOT_COMPARED = {
    # Not in gloo, or torch rejects them for gloo before it checks the group.
    "reconfigure",
    "shrink_group",
    "split_group",
    # The result is a group, or the function concerns all groups.
    "init_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    # Not functions of a group of torch.distributed, or removed from it.
    "gather_into_tensor",
    "reduce_op",
}


def _calls(dist: Any, pg: Any) -> dict[str, Callable[[], Any]]:
    """Calls with a group of the ranks 1 and 0, which excludes this rank, global rank 2."""
    one, two = torch.ones(2), torch.ones(4)
    parts = [torch.ones(2), torch.ones(2)]
    functions: dict[str, tuple[Any, ...]] = {
        "_rank_not_in_group": (),
        "all_gather": (parts, one),
        "all_gather_into_tensor": (two, one),
        "all_gather_object": ([None, None], "x"),
        "all_gather_single": (two, one),
        "all_reduce": (one,),
        "all_to_all": (parts, parts),
        "all_to_all_single": (two, two),
        "barrier": (),
        "broadcast": (one, 0),
        "broadcast_object_list": (["x"], 0),
        "destroy_process_group": (),
        "gather": (one, None, 0),
        "gather_object": ("x", None, 0),
        "gather_single": (one, None, 0),
        "get_backend": (),
        "get_backend_config": (),
        "get_backend_impl": (),
        "get_process_group_ranks": (),
        "get_rank": (),
        "get_world_size": (),
        "irecv": (one, 0),
        "isend": (one, 0),
        "monitored_barrier": (),
        "recv": (one, 0),
        "recv_object_list": (["x"], 0),
        "reduce": (one, 0),
        "reduce_scatter": (one, parts),
        "reduce_scatter_single": (one, two),
        "reduce_scatter_tensor": (one, two),
        "scatter": (one, None, 0),
        "scatter_object_list": ([None], None, 0),
        "send": (one, 0),
        "send_object_list": (["x"], 0),
        "set_timeout": (timedelta(seconds=9),),
    }

    def call(name: str, given: tuple[Any, ...], **options: Any) -> Callable[[], Any]:
        return lambda: getattr(dist, name)(*given, group=pg, **options)

    calls = {name: call(name, given) for name, given in functions.items() if hasattr(dist, name)}
    for name in ("broadcast", "broadcast_object_list", "irecv", "recv", "scatter"):
        calls[f"{name}, no rank"] = call(name, functions[name][:1])
        calls[f"{name}, group_src"] = call(name, functions[name][:1], group_src=1)
    for name in ("isend", "send", "reduce", "gather"):
        calls[f"{name}, no rank"] = call(name, functions[name][:1])
        calls[f"{name}, group_dst"] = call(name, functions[name][:1], group_dst=1)
    for name in ("broadcast", "gather", "isend", "reduce", "scatter_object_list", "gather_object"):
        for rank in (1, 2, 7):  # outside the group as well
            calls[f"{name}, rank {rank}"] = call(name, (*functions[name][:-1], rank))
    for name in ("all_reduce", "all_gather_single", "all_to_all", "barrier"):
        if hasattr(dist, name):
            calls[f"{name}, async_op"] = call(name, functions[name], async_op=True)
    for rank in (0, 1, 2, 7):
        calls[f"get_group_rank, {rank}"] = lambda rank=rank: dist.get_group_rank(pg, rank)
        calls[f"get_global_rank, {rank}"] = lambda rank=rank: dist.get_global_rank(pg, rank)
    for op in ("isend", "irecv"):
        for peer in (0, 2):
            calls[f"P2POp, {op}, {peer}"] = lambda op=op, peer=peer: (
                type(dist.P2POp(getattr(dist, op), one, peer, pg)).__name__
            )
        calls[f"batch_isend_irecv, {op}"] = lambda op=op: dist.batch_isend_irecv(
            [dist.P2POp(getattr(dist, op), one, 0, pg)]
        )
        calls[f"batch_isend_irecv, {op}, group_peer"] = lambda op=op: dist.batch_isend_irecv(
            [dist.P2POp(getattr(dist, op), one, group=pg, group_peer=0)]
        )
    return calls


def _outcome(call: Callable[[], Any]) -> tuple[str, Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            kind, value = "returned", call()
        except Exception as error:
            kind, value = "raised", error
    texts = [str(one.message) for one in caught if "Running" in str(one.message)]
    if not hasattr(torch_dist, "all_gather_single"):  # torch before 2.13 has older names
        texts = [re.sub("_into_tensor|(?<=scatter)_tensor", "_single", text) for text in texts]
    return kind, value, texts


@on_ranks(3)
def test_functions_on_a_rank_outside_the_group(
    dist: Any, rank: int, size: int, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/torch"

    torch_dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size)
    try:
        groups = {d: d.new_group([1, 0]) for d in (dist, torch_dist)}
        if rank == 2:
            assert all(pg == d.GroupMember.NON_GROUP_MEMBER for d, pg in groups.items())
            calls = {d: _calls(d, pg) for d, pg in groups.items()}
            wrong = []
            for name, call in calls[torch_dist].items():
                expected, got = _outcome(call), _outcome(calls[dist][name])
                same = expected[0] == got[0] and expected[2] == got[2]
                if expected[0] == "raised":
                    same = same and isinstance(got[1], type(expected[1]))
                elif name.startswith("get_backend"):
                    pass
                else:
                    same = same and expected[1] == got[1]
                if not same:
                    wrong.append(f"{name}: torch {expected}, pynccl {got}")
            assert not wrong, "\n" + "\n".join(wrong)
        dist.barrier()  # the other ranks may still be connecting gloo to this one
    finally:
        torch_dist.destroy_process_group()


def test_no_function_is_missing() -> None:
    import pynccl as dist

    functions = {name: getattr(dist, name) for name in dist.__all__}
    takes_group = {
        name
        for name, function in functions.items()
        if inspect.isroutine(function)
        and getattr(function, "__module__", "").startswith("pynccl.")
        and "group" in inspect.signature(function).parameters
    }
    tried = {name.split(",")[0] for name in _calls(dist, None)}
    assert takes_group - tried - _NOT_COMPARED == set()
