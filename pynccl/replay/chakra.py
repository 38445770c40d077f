"""Reads the communication of PyTorch execution traces (Chakra ET, JSON): one file per process.

torch's ExecutionTraceObserver writes them. The nodes ``record_param_comms`` of NCCL's backend say
all that is needed but the operator of reductions, which is taken as a sum. Backends without them
have nodes of c10d's operators, which do not say the group: they are read where there is one group.

An execution trace has no times and no streams: operations are in the order of their nodes, those of
each group on a stream. Nor does it say which messages were one batch: those that follow each other
in a group are one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pynccl.replay.errors import ReplayError
from pynccl.replay.shape import ITEMSIZES
from pynccl.trace.model import Communicator, Operation, ProcessTrace

__all__ = ["parse"]

# Of c10::ScalarType, and of the types of tensors.
_DTYPES = {
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "bool": "uint8",
    "int": "int32",
    "uint32": "uint32",
    "unsigned int": "uint32",
    "long": "int64",
    "long int": "int64",
    "uint64": "uint64",
    "unsigned long": "uint64",
    "half": "float16",
    "c10::half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3",
    "c10::float8_e4m3fn": "float8_e4m3",
    "float8_e5m2": "float8_e5m2",
    "c10::float8_e5m2": "float8_e5m2",
}
_KINDS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce": "all_reduce",
    "barrier": "all_reduce",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
_NO_OPERATIONS = ("init", "wait", "coalesced", "endcoalescing", "startcoalescing", "")
_WITH_RANK_OF_OTHERS = ("broadcast", "reduce", "gather", "scatter", "send", "recv")
_SCRATCH = 1 << 80  # addresses of buffers that the trace does not have as one tensor
_MOST_RANKS = 1 << 20  # more than any job has: what is more is no number of ranks
_DIGITS = re.compile(r"(\d+)\D*$")


@dataclass
class _Group:
    """A process group.

    Attributes:
        name: torch's, equal on all its ranks.
        ranks: its processes.
    """

    name: str
    desc: str
    ranks: list[int]

    @property
    def id(self) -> str:
        text = json.dumps([self.name, self.ranks])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class _Call:
    """An operation of a node.

    Attributes:
        number: of the node.
        group: the name of its process group.
        other: the root or the peer, or the own rank.
        inputs: elements of all inputs; outputs likewise.
        send: the address of the input, None where it is not one tensor; recv likewise.
    """

    number: int
    name: str
    kind: str
    group: str
    other: int
    dtype: str
    inputs: int
    outputs: int
    send: int | None
    recv: int | None
    in_splits: list[int] = field(default_factory=list)
    out_splits: list[int] = field(default_factory=list)


def parse(value: Mapping[str, Any], path: str) -> ProcessTrace:
    """The operations of an execution trace.

    Args:
        value: the JSON.
        path: of its file, whose last number is the rank where the nodes do not say it.

    Raises:
        ReplayError: it is not complete, or has an operation that cannot be replayed.
    """
    try:
        return _parse(value, path)
    except ReplayError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ReplayError(f"{path}: this is not an execution trace: {error!r}") from None


def _parse(value: Mapping[str, Any], path: str) -> ProcessTrace:
    nodes: list[dict[str, Any]] = sorted(value["nodes"], key=lambda node: int(node["id"]))
    groups = _groups(nodes)
    params = [node for node in nodes if node["name"] == "record_param_comms"]
    if params:
        calls = [call for node in params for call in _param_calls(node, groups, path)]
    else:
        calls = [call for node in nodes for call in _c10d_calls(node, groups, path)]
    rank = _own_rank(calls, groups, path)
    trace = ProcessTrace(rank, int(value.get("pid", 0)), "", path, 0, False, 0, 0)
    for name in dict.fromkeys(call.group for call in calls):
        group = groups[name]
        if rank not in group.ranks:
            raise ReplayError(
                f"{path}: process {rank} is not in group {name!r} of ranks {group.ranks}"
            )
        own = group.ranks.index(rank)
        trace.communicators[group.id, own] = Communicator(
            id=group.id,
            joined=None,
            parent=None,
            name=group.desc or group.name,
            creator="ncclCommInitRankConfig",
            provider="cuda",
            rank=own,
            nranks=len(group.ranks),
            device=0,
        )
    trace.operations = list(_operations(calls, groups, rank, path))
    trace.ended = trace.operations[-1].called if trace.operations else 0
    return trace


def _groups(nodes: Sequence[Mapping[str, Any]]) -> dict[str, _Group]:
    """The groups that the trace describes at its begin."""
    groups = {}
    for node in nodes:
        if "process_group:init" not in node["name"]:
            continue
        for one in json.loads(node["inputs"]["values"][0]):
            ranks = one["ranks"] or list(range(_size(one["group_size"])))
            name = str(one["pg_name"])
            groups[name] = _Group(name, str(one.get("pg_desc", "")), [int(rank) for rank in ranks])
    return groups


def _size(value: object) -> int:
    """The number of ranks of a group."""
    size = int(str(value))
    if size > _MOST_RANKS:
        raise ValueError(f"a group has {size} ranks")
    return size


def _own_rank(calls: Sequence[_Call], groups: Mapping[str, _Group], path: str) -> int:
    for call in calls:
        if call.kind not in _WITH_RANK_OF_OTHERS and call.other >= 0:
            return groups[call.group].ranks[call.other]
    found = _DIGITS.search(Path(path).stem)
    if found is None:
        raise ReplayError(
            f"{path}: its nodes do not say which rank's it is; let the name of the file end with "
            "the rank"
        )
    return int(found[1])


# --- nodes of NCCL's backend


def _param_calls(node: Mapping[str, Any], groups: dict[str, _Group], path: str) -> Iterator[_Call]:
    attributes = {one["name"]: one["value"] for one in node["attrs"]}
    name = str(attributes["collective_name"]).lower()
    if name in _NO_OPERATIONS:
        return
    values = node["inputs"]["values"]
    group, other = str(attributes["pg_name"]), int(values[-8])
    if group not in groups:
        groups[group] = _new_group(attributes, path)
    # A barrier has no tensors; it is an all-reduce of one element.
    inputs = max(int(attributes["in_msg_nelems"]), int(name == "barrier"))
    outputs = max(int(attributes["out_msg_nelems"]), int(name == "barrier"))
    yield _Call(
        number=int(node["id"]),
        name=name,
        kind=_kind(name, path),
        group=group,
        other=other,
        dtype=_dtype(str(attributes["dtype"]), path),
        inputs=inputs,
        outputs=outputs,
        send=_address(values[0], inputs) if len(values) > 10 else None,
        recv=_address(node["outputs"]["values"], outputs),
        in_splits=[int(one) for one in values[-6]],
        out_splits=[int(one) for one in values[-5]],
    )


def _new_group(attributes: Mapping[str, Any], path: str) -> _Group:
    """A group that was made after the begin of the trace."""
    name, size = str(attributes["pg_name"]), _size(attributes["pg_size"])
    start, stride = int(attributes["global_rank_start"]), int(attributes["global_rank_stride"])
    if size > 1 and stride < 1:
        raise ReplayError(
            f"{path}: it does not say which ranks group {name!r} of {size} has; start the observer "
            "after the groups are made"
        )
    ranks = [start + stride * place for place in range(size)]
    return _Group(name, str(attributes.get("pg_desc", "")), ranks)


def _kind(name: str, path: str) -> str:
    if name not in _KINDS:
        raise ReplayError(f"{path}: it has an operation {name!r}, which cannot be replayed")
    return _KINDS[name]


def _dtype(name: str, path: str) -> str:
    found = _DTYPES.get(name.lower())
    if found is None:
        raise ReplayError(
            f"{path}: it has an operation on dtype {name!r}, which NCCL does not have"
        )
    return found


# --- nodes of c10d's operators


def _c10d_calls(node: Mapping[str, Any], groups: dict[str, _Group], path: str) -> Iterator[_Call]:
    if not str(node["name"]).startswith("c10d::"):
        return
    name = node["name"].removeprefix("c10d::").rstrip("_")
    if name not in _KINDS:
        raise ReplayError(f"{path}: it has an operation {name!r}, which cannot be replayed")
    if len(groups) != 1:
        raise ReplayError(
            f"{path}: it has {len(groups)} groups, and its operations do not say theirs; only "
            "traces of NCCL's backend do"
        )
    arguments = _arguments(node)
    kind = _KINDS[name]
    sent = arguments.get("input_tensors", arguments.get("input_tensor", arguments.get("input")))
    got = arguments.get("output_tensors", arguments.get("output_tensor", arguments.get("output")))
    one = arguments.get("tensors", arguments.get("tensor"))
    sent, got = (sent or one), (got or one)
    inputs, outputs = _elements(sent), _elements(got)
    other = next((arguments[key] for key in ("root_rank", "dst", "src") if key in arguments), -1)
    yield _Call(
        number=int(node["id"]),
        name=name,
        kind=kind,
        group=next(iter(groups)),
        other=int(other),
        dtype=_dtype(_type_of(node), path),
        inputs=inputs,
        outputs=outputs,
        send=_address(sent, inputs),
        recv=_address(got, outputs),
        in_splits=[int(one) for one in arguments.get("input_split_sizes", [])],
        out_splits=[int(one) for one in arguments.get("output_split_sizes", [])],
    )


def _arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of an operator by the names in its schema."""
    schema = {one["name"]: one["value"] for one in node["attrs"]}["op_schema"]
    listed = schema[schema.index("(") + 1 : schema.rindex(") ->")].split(", ")
    names = [part.split()[-1].partition("=")[0] for part in listed]
    return dict(zip(names, node["inputs"]["values"], strict=False))


def _type_of(node: Mapping[str, Any]) -> str:
    for text in node["inputs"]["types"]:
        found = re.search(r"Tensor\(([^)]+)\)", text)
        if found:
            return found[1]
    raise TypeError(f"node {node['id']} has no tensor")


# --- tensors: [its number, that of its storage, offset, elements, bytes of an element, device]


def _tensors(value: object) -> Iterator[list[Any]]:
    if not isinstance(value, list):
        return
    if len(value) == 6 and isinstance(value[5], str):
        yield value
        return
    for one in value:
        yield from _tensors(one)


def _elements(value: object) -> int:
    return sum(int(tensor[3]) for tensor in _tensors(value))


def _address(value: object, elements: int) -> int | None:
    """Of one tensor with so many elements; None where it is another number of tensors."""
    tensors = list(_tensors(value))
    if len(tensors) != 1 or int(tensors[0][3]) < elements:
        return None
    _, storage, offset, _, itemsize, _ = tensors[0]
    return (int(storage) + 1 << 40) + int(offset) * int(itemsize)


# --- operations


def _operations(
    calls: Sequence[_Call], groups: Mapping[str, _Group], rank: int, path: str
) -> Iterator[Operation]:
    counts: Counter[tuple[object, ...]] = Counter()
    streams = {name: place for place, name in enumerate(groups, 1)}
    batch, before = 0, None
    for call in calls:
        group = groups[call.group]
        nranks, own = len(group.ranks), group.ranks.index(rank)
        single = call.kind in ("send", "recv")
        parts = list(_parts(call, nranks, own))
        uneven = len(parts) > 1
        if uneven or not single or before != call.group:
            batch += 1
        before = call.group if single else None
        for kind, count, other, send, recv in parts:
            if call.kind in _WITH_RANK_OF_OTHERS and not 0 <= call.other < nranks:
                raise ReplayError(f"{path}: node {call.number} has rank {call.other} of {nranks}")
            message = kind in ("send", "recv")
            counts[group.id, "sequence"] += 1
            key = (group.id, kind, other) if message else (group.id, "collective")
            counts[key] += 1
            item = ITEMSIZES[call.dtype]
            yield Operation(
                kind=kind,
                communicator=group.id,
                sequence=counts[group.id, "sequence"],
                number=counts[key],
                dtype=call.dtype,
                count=count,
                op="sum" if "reduce" in kind else None,
                root=other if kind in ("broadcast", "reduce", "gather", "scatter") else None,
                peer=other if message else None,
                sendbuff=send,
                recvbuff=recv,
                stream=streams[call.group],
                thread=1,
                group=batch if message else None,
                graph=None,
                called=call.number * 1000,
                returned=None,
                began=None,
                ended=None,
                failed=False,
                sendbytes=call.inputs * item,
                recvbytes=call.outputs * item,
            )


def _parts(call: _Call, nranks: int, own: int) -> Iterator[tuple[str, int, int, int, int]]:
    """What an operation is in nccl.h: (kind, count, root or peer, sendbuff, recvbuff)."""
    item = ITEMSIZES[call.dtype]
    scratch = _SCRATCH + (call.number << 41)
    send = call.send if call.send is not None else scratch
    recv = call.recv if call.recv is not None else scratch + (1 << 40)
    if call.name == "barrier":
        recv = send
    splits = call.in_splits or call.out_splits
    if call.kind == "all_to_all" and splits:
        sent = _split(call.inputs, call.in_splits, nranks)
        received = _split(call.outputs, call.out_splits, nranks)
        for peer in range(nranks):
            if sent[peer]:
                yield "send", sent[peer], peer, send + sum(sent[:peer]) * item, 0
            if received[peer]:
                yield "recv", received[peer], peer, 0, recv + sum(received[:peer]) * item
        return
    count = call.inputs
    if call.kind in ("reduce_scatter", "scatter", "recv"):
        count = call.outputs
    elif call.kind == "all_to_all":
        count = call.inputs // nranks
    yield call.kind, count, call.other, send, recv


def _split(elements: int, splits: Sequence[int], nranks: int) -> list[int]:
    """The elements for each rank: by splits of the first dimension, else evenly."""
    rows = sum(splits)
    if not rows:
        return [elements // nranks] * nranks
    return [elements // rows * split for split in splits]
