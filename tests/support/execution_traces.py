"""Execution traces of PyTorch, constructed for tests, in the form that torch 2.13 gives them."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["document", "node"]


def node(name: str, rank: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """A node record_param_comms; its tensors are [id, storage, offset, elements, bytes, device]."""
    values: dict[str, Any] = {
        "pg": "0",
        "size": 2,
        "start": 0,
        "stride": 1,
        "inputs": [1, 10, 0, 8, 4, "cuda:0"],
        "outputs": [2, 20, 0, 8, 4, "cuda:0"],
        "in_splits": [],
        "out_splits": [],
        "dtype": "Float",
        **fields,
    }
    if name == "barrier":
        values |= {"inputs": None, "outputs": None}
    tensors = {key: [values[key]] if values[key] else [] for key in ("inputs", "outputs")}
    attributes = {
        "collective_name": name,
        "dtype": values["dtype"],
        "in_msg_nelems": sum(one[3] for one in tensors["inputs"]),
        "out_msg_nelems": sum(one[3] for one in tensors["outputs"]),
        "in_split_size": str(values["in_splits"]),
        "out_split_size": str(values["out_splits"]),
        "global_rank_start": values["start"],
        "global_rank_stride": values["stride"],
        "pg_name": values["pg"],
        "pg_desc": "default_pg" if values["pg"] == "0" else "",
        "pg_size": values["size"],
    }
    inputs = [
        *([1, False], [values["pg"], attributes["pg_desc"]], rank, name),
        *(values["in_splits"], values["out_splits"], values["start"], values["stride"]),
        *(values["size"], True),
    ]
    if name != "barrier":
        inputs.insert(0, tensors["inputs"])
    return {
        "name": "record_param_comms",
        "inputs": {"values": inputs},
        "outputs": {"values": [tensors["outputs"]] if name != "barrier" else []},
        "attrs": [
            {"name": key, "type": "string", "value": value} for key, value in attributes.items()
        ],
    }


def document(*nodes: dict[str, Any], **groups: list[int]) -> dict[str, Any]:
    """The file of a process: its nodes, and the ranks of its groups; one group of 2 by default."""
    described = [
        {"pg_name": name, "pg_desc": "", "ranks": ranks, "group_size": len(ranks)}
        for name, ranks in groups.items()
    ]
    described = described or [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}
    ]
    first = {
        "name": "## process_group:init ##",
        "inputs": {"values": [json.dumps(described)]},
        "outputs": {"values": []},
        "attrs": [],
    }
    numbered = [{**node, "id": number} for number, node in enumerate([first, *nodes], 3)]
    value = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": numbered[::-1]}
    copied: dict[str, Any] = json.loads(json.dumps(value))
    return copied
