"""Proves that a wrong argument is an error with the name of the parameter, before anything is sent.

The table names every parameter of every function that takes tensors, lists, objects or ranks.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import pynccl
from tests.support.ranks import on_ranks

Values = dict[str, Any]


def _ones(count: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def _pair() -> list[torch.Tensor]:
    return [_ones(), _ones()]


class Kind(NamedTuple):
    """A kind of parameter: a correct value, and wrong ones by what is wrong."""

    right: Callable[[], Any]
    wrong: Values


_NO_TENSOR = {"None": None, "int": 3, "list": [_ones()]}
_UNUSABLE = {
    "sparse": _ones().to_sparse(),
    "meta": torch.ones(4, device="meta"),
    "int16": _ones(4, torch.int16),
    "strided": torch.ones(8)[::2],
}
TENSOR = Kind(_ones, {**_NO_TENSOR, **_UNUSABLE})
# One of several tensors, of which dtypes and sizes must match.
PART = Kind(_ones, {**TENSOR.wrong, "float64": _ones(4, torch.float64), "short": _ones(3)})
WHOLE = Kind(
    lambda: _ones(8),
    {
        **_NO_TENSOR,
        "sparse": _ones(8).to_sparse(),
        "meta": torch.ones(8, device="meta"),
        "int16": _ones(8, torch.int16),
        "strided": torch.ones(16)[::2],
        "float64": _ones(8, torch.float64),
        "short": _ones(7),
    },
)
LIST = Kind(
    _pair,
    {
        "None": None,
        "int": 3,
        "tensor": _ones(),
        "tuple": (_ones(), _ones()),
        "one": [_ones()],
        "three": [_ones()] * 3,
        "none": [],
        "element": [_ones(), 3],
        "float64": [_ones(), _ones(4, torch.float64)],
        "short": [_ones(3), _ones(3)],
        **{f"first {name}": [tensor, _ones()] for name, tensor in _UNUSABLE.items()},
        **{f"second {name}": [_ones(), tensor] for name, tensor in _UNUSABLE.items()},
    },
)
RANK = Kind(lambda: 0, {"beyond": 2, "negative": -1, "str": "0", "float": 1.0, "list": [0]})
SOURCE = Kind(lambda: 1 - pynccl.get_rank(), RANK.wrong)  # None is any source
PEER = Kind(SOURCE.right, {**RANK.wrong, "None": None})
GROUP = Kind(lambda: None, {"int": 7, "list": [0, 1], "str": "x"})
OPERATOR = Kind(
    lambda: "sum",
    {"None": None, "int": 7, "name": "summ", "bitwise": torch.distributed.ReduceOp.BAND},
)
SPLITS = Kind(
    lambda: [2, 2],
    {
        "int": 3,
        "one": [4],
        "sum": [1, 2],
        "str": ["2", "2"],
        "negative": [-1, 5],
        "float": [2.0, 2.0],
    },
)
ANYTHING = Kind(lambda: 3, {})
OBJECTS = Kind(lambda: [None], {"None": None, "int": 3, "str": "x", "none": []})
EACH_OBJECT = Kind(lambda: [None, None], {**OBJECTS.wrong, "one": [None], "tuple": (None, None)})
SENT_OBJECTS = Kind(lambda: [1, 2], {"None": None, "int": 3, "one": [1], "three": [1, 2, 3]})
RANKS = Kind(
    lambda: [0, 1],
    {
        "int": 3,
        "none": [],
        "beyond": [2],
        "negative": [-1],
        "str": ["0"],
        "float": [0.5],
        "twice": [0, 0],
        "nested": [[0]],
    },
)
LISTS = Kind(
    lambda: [[0, 1]],
    {
        "None": None,
        "int": 3,
        "none": [],
        "flat": [0, 1],
        **{name: [value] for name, value in RANKS.wrong.items()},
    },
)
TWO_LISTS = Kind(LISTS.right, {**LISTS.wrong, "both": [[0], [0, 1]]})
EXCLUDED = Kind(lambda: [1], {**RANKS.wrong, "None": None})
SIZE = Kind(lambda: 2, {"str": "2", "none": 0, "beyond": 3})
TIMEOUT = Kind(lambda: None, {"int": 3, "str": "3"})
OPTIONS = Kind(lambda: None, {"int": 3, "str": "x"})
DEVICE = Kind(lambda: None, {"int": 3, "str": "x"})
TEXT = Kind(lambda: None, {"int": 3})
BACKEND = Kind(lambda: None, {"int": 3, "unknown": "x"})

_CREATION = {"timeout": TIMEOUT, "backend": BACKEND, "pg_options": OPTIONS}
TABLE: dict[str, dict[str, Kind]] = {
    "all_gather": {"tensor_list": LIST, "tensor": PART},
    "all_gather_into_tensor": {"output_tensor": WHOLE, "input_tensor": PART},
    "all_gather_object": {"object_list": EACH_OBJECT, "obj": ANYTHING},
    "all_gather_single": {"output_tensor": WHOLE, "input_tensor": PART},
    "all_reduce": {"tensor": TENSOR, "op": OPERATOR},
    "all_to_all": {"output_tensor_list": LIST, "input_tensor_list": LIST},
    "all_to_all_single": {
        "output": PART,
        "input": PART,
        "output_split_sizes": SPLITS,
        "input_split_sizes": SPLITS,
    },
    "barrier": {"device_ids": ANYTHING, "timeout": TIMEOUT},
    "broadcast": {"tensor": TENSOR, "src": RANK, "group_src": RANK},
    "broadcast_object_list": {"object_list": OBJECTS, "src": RANK, "group_src": RANK},
    "gather": {"tensor": PART, "gather_list": LIST, "dst": RANK, "group_dst": RANK},
    "gather_into_tensor": {"tensor": PART, "gather_tensor": WHOLE, "dst": RANK, "group_dst": RANK},
    "gather_object": {
        "obj": ANYTHING,
        "object_gather_list": EACH_OBJECT,
        "dst": RANK,
        "group_dst": RANK,
    },
    "gather_single": {"tensor": PART, "gather_tensor": WHOLE, "dst": RANK, "group_dst": RANK},
    "get_backend_impl": {"device": DEVICE},
    "irecv": {"tensor": TENSOR, "src": SOURCE, "group_src": SOURCE},
    "isend": {"tensor": TENSOR, "dst": PEER, "group_dst": PEER},
    "new_group": {"ranks": RANKS, "group_desc": TEXT, "device_id": DEVICE, **_CREATION},
    "new_subgroups": {"group_size": SIZE, **_CREATION},
    "new_subgroups_by_enumeration": {"ranks_per_subgroup_list": TWO_LISTS, **_CREATION},
    "recv": {"tensor": TENSOR, "src": SOURCE, "group_src": SOURCE},
    "recv_object_list": {"object_list": OBJECTS, "src": SOURCE, "group_src": SOURCE},
    "reduce": {"tensor": TENSOR, "op": OPERATOR, "dst": RANK, "group_dst": RANK},
    "reduce_scatter": {"output": PART, "input_list": LIST, "op": OPERATOR},
    "reduce_scatter_single": {"output": PART, "input": WHOLE, "op": OPERATOR},
    "reduce_scatter_tensor": {"output": PART, "input": WHOLE, "op": OPERATOR},
    "scatter": {"tensor": PART, "scatter_list": LIST, "src": RANK, "group_src": RANK},
    "scatter_object_list": {
        "scatter_object_output_list": OBJECTS,
        "scatter_object_input_list": SENT_OBJECTS,
        "src": RANK,
        "group_src": RANK,
    },
    "send": {"tensor": TENSOR, "dst": PEER, "group_dst": PEER},
    "send_object_list": {"object_list": OBJECTS, "dst": PEER, "group_dst": PEER},
    "shrink_group": {"ranks_to_exclude": EXCLUDED, "pg_options": OPTIONS},
    "split_group": {"split_ranks": LISTS, **_CREATION},
}
# Parameters whose wrong values are tested elsewhere, or that take any value.
ANY = {"async_op", "device", "group", "group_desc", "parent_pg", "shrink_flags", "sort_ranks"}
ANY |= {"tag", "use_batch", "use_local_synchronization", "weights_only"}
# Passed on the root only.
OF_ROOT = {"gather_list", "gather_tensor", "object_gather_list", "scatter_object_input_list"}
OF_ROOT |= {"scatter_list"}
# The elements of P2POp, which other tests cover.
OTHERS = {"batch_isend_irecv", "breakpoint", "monitored_barrier", "reconfigure", "rendezvous"}
OTHERS |= {"init_process_group", "destroy_process_group", "register_rendezvous_handler"}


def test_the_table_is_complete() -> None:
    for name in pynccl.__all__:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of reduce_op
            function = getattr(pynccl, name)
            if isinstance(function, type) or not callable(function):
                continue
        if name.startswith(("is_", "get_", "set_", "_")) or name in {*OTHERS, "supports_complex"}:
            continue
        parameters = set(inspect.signature(function).parameters)
        assert parameters - ANY == set(TABLE[name]) - ANY, name


def _arguments(parameters: dict[str, Kind], wrong: str, value: object) -> Values:
    """Return the arguments of a call, of which one is wrong."""
    right = {
        name: kind.right()
        for name, kind in parameters.items()
        if name != f"group_{wrong}" and f"group_{name}" != wrong
        if not (name.startswith("group_") and kind in (RANK, SOURCE, PEER))
        if name not in OF_ROOT or pynccl.get_rank() == 0
    }
    return {**right, wrong: value}


def _error(function: Callable[..., Any], arguments: Values) -> str:
    try:
        function(**arguments)
    except pynccl.DistBackendError as error:
        return f"not before NCCL was called: {error}"
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def _names(parameter: str, text: str) -> bool:
    """Whether a text names a parameter, also in torch's words."""
    return re.search(rf"\b{parameter}\b", text, re.IGNORECASE) is not None


@on_ranks(2)
def test_errors_name_the_parameter(dist: Any, rank: int, size: int) -> None:
    warnings.simplefilter("ignore")
    found = []
    for name, parameters in TABLE.items():
        function = getattr(dist, name)
        for parameter, kind in parameters.items():
            if parameter in OF_ROOT and rank != 0:
                continue
            for what, value in kind.wrong.items():
                if rank != 0 and OF_ROOT & set(parameters) and what in ("float64", "short"):
                    continue  # nothing to compare with
                text = _error(function, _arguments(parameters, parameter, value))
                if not _names(parameter, text):
                    found.append(f"{name}({parameter}: {what}): {text}")
        if "group" in inspect.signature(function).parameters:
            for what, value in GROUP.wrong.items():
                text = _error(function, {**_arguments(parameters, "group", value)})
                if not _names("group", text):
                    found.append(f"{name}(group: {what}): {text}")
    assert not found, "\n".join(found)
    dist.barrier()  # nothing was sent before


@on_ranks(2)
def test_groups_of_other_functions(dist: Any, rank: int, size: int) -> None:
    for name in ("get_backend", "get_backend_config", "get_process_group_ranks", "get_rank",
                 "get_world_size", "get_backend_impl"):  # fmt: skip
        for value in (7, [0, 1]):
            text = _error(getattr(dist, name), {"group": value})
            assert _names("group", text), (name, text)
    text = _error(dist.batch_isend_irecv, {"p2p_op_list": []})
    assert _names("p2p_op_list", text)
    for what, tensor in _UNUSABLE.items():
        ops = [dist.P2POp(dist.isend, _ones(), 1 - rank), dist.P2POp(dist.isend, tensor, 1 - rank)]
        text = _error(dist.batch_isend_irecv, {"p2p_op_list": ops})
        assert text.startswith("p2p_op_list[1]: "), (what, text)
    # A mistake leaves the group usable.
    assert _names(
        "pg_options", _error(dist.shrink_group, {"ranks_to_exclude": [1 - rank], "pg_options": 3})
    )
    dist.barrier()


@on_ranks(2)
def test_a_complex_tensor_is_gathered_in_real_ones(dist: Any, rank: int, size: int) -> None:
    own, parts = torch.tensor([1 + 2j, rank + 3j]), [torch.zeros(2, 2) for _ in range(size)]
    dist.all_gather(parts, own)
    assert [part[1, 0].item() for part in parts] == [0.0, 1.0]
    complex_parts = [torch.zeros(2, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(complex_parts, parts[rank])
    assert torch.equal(complex_parts[rank], own)


@on_ranks(2)
def test_sizes_and_ranks_of_numpy(dist: Any, rank: int, size: int) -> None:
    output, own = torch.empty(4), torch.full((4,), float(rank))
    for sizes in (np.array([2, 2]), np.array([], int), torch.Size([2, 2])):
        dist.all_to_all_single(output, own, sizes, sizes)
        assert output.tolist() == [0.0, 0.0, 1.0, 1.0]
    group, groups = dist.new_subgroups(np.int64(1))
    assert (group.size(), len(groups)) == (1, 2)
    members: tuple[Any, ...] = (np.array([0, 1]), iter([0, 1]))
    for ranks in members:
        group = dist.split_group(split_ranks=[ranks])
        assert dist.get_process_group_ranks(group) == [0, 1]
        dist.all_reduce(torch.ones(1), group=group)


@on_ranks(2)
def test_objects_of_other_collections(dist: Any, rank: int, size: int) -> None:
    """What torch iterates over, or assigns one by one."""
    values = {"a": 1, "b": "x"}.values()
    lists: tuple[Any, ...] = ([None, None], deque([None, None]), np.empty(2, object))
    for received in lists:
        dist.broadcast_object_list(values if rank == 0 else received, 0)
        assert rank == 0 or list(received) == [1, "x"]
    output: list[Any] = [None]
    dist.scatter_object_list(output, values if rank == 0 else None, 0)
    assert output == [[*values][rank]]
