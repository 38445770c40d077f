"""ncclConfig_t: the values accepted when a communicator of one rank is created."""

from __future__ import annotations

import ctypes as c
from typing import Any

from tests.rules.rank import Rank, handle
from tests.rules.rule import rule


def _accepts(rank: Rank, **fields: object) -> bool:
    comm = c.c_void_p()
    code = rank.init(comm, **fields)
    if code == "inProgress":
        rank.settle(comm)
    if code in {"success", "inProgress"}:
        rank.nccl.CommDestroy(comm)
    return code in {"success", "inProgress"}


def _field(
    name: str,
    accepted: Any,  # noqa: ANN401 - by release
    tried: list[int],
    **options: Any,  # noqa: ANN401 - of rule()
) -> None:
    def probe(rank: Rank) -> list[int]:
        return [value for value in tried if _accepts(rank, **{name: value})]

    text = f"The accepted values of {name}, out of {tried}"
    rule("CommInitRankConfig", text, accepted, name=f"config_{name}", **options)(probe)


_field("blocking", [0, 1], [-1, 0, 1, 2])
_field("cgaClusterSize", [0, 1, 8, 9], [-1, 0, 1, 8, 9])
_field("minCTAs", [], [-1, 0, 1, 32, 64, 65])
_field("maxCTAs", [1, 32, 64, 65], [-1, 0, 1, 32, 64, 65])
_field("splitShare", [0, 1], [-1, 0, 1, 2])
_field("trafficClass", [-2, -1, 0, 255], [-2, -1, 0, 255], first=22600)
_field("collnetEnable", [0, 1], [-1, 0, 1, 2], first=22700)
_field("CTAPolicy", {"2.28": [0, 1, 2], "2.30": [0, 1, 2, 3]}, [-1, 0, 1, 2, 3, 4], first=22700)
_field("shrinkShare", [0, 1], [-1, 0, 1, 2], first=22700)
_field("nvlsCTAs", [1, 16, 1000], [-1, 0, 1, 16, 1000], first=22700)
_field("nChannelsPerNetPeer", [1, 3], [-1, 0, 1, 3, 1000], first=22800)
_field("nvlinkCentricSched", [0, 1], [-1, 0, 1, 2], first=22800)
_field("graphUsageMode", [0, 1, 2], [-1, 0, 1, 2, 3], first=22900)
_field("numRmaCtx", [0, 1, 4], [-1, 0, 1, 4], first=22900)
_field("maxP2pPeers", [1, 1000], [-1, 0, 1, 1000], first=23000)
_field("graphStreamOrdering", [0, 1], [-1, 0, 1, 2], first=23007)


@rule(
    "CommInitRankConfig",
    "minCTAs requires a maxCTAs that is at least as large",
    nccl=[True, True, False],
)
def config_minimum_and_maximum(rank: Rank) -> list[bool]:
    return [_accepts(rank, minCTAs=low, maxCTAs=high) for low, high in ((2, 8), (8, 8), (9, 3))]


@rule("CommInitRankConfig", "commName may have any length", nccl=[True, True], first=22700)
def config_comm_name(rank: Rank) -> list[bool]:
    return [_accepts(rank, commName=name) for name in (b"", b"n" * 1000)]


@rule(
    "CommInitRankConfig",
    "The built-in network is named Socket, case-insensitively; other names and an empty "
    "name are rejected",
    nccl=[True, True, False, False],
)
def config_network(rank: Rank) -> list[bool]:
    names = (b"Socket", b"socket", b"", b"nosuchnet")
    return [_accepts(rank, netName=name) for name in names]


def _raw(rank: Rank, config: Any) -> str:  # noqa: ANN401 - its class depends on the version
    comm = c.c_void_p()
    return rank.nccl.CommInitRankConfig(c.byref(comm), 1, rank.id(), 0, c.byref(config))


@rule(
    "CommInitRankConfig",
    "An uninitialized configuration is rejected; 2.18 accepts one of all zeros",
    nccl={
        "2.18": ["invalidArgument", "success"],
        "2.24": ["invalidArgument", "invalidArgument"],
    },
)
def config_magic(rank: Rank) -> list[str]:
    zeros = rank.config()
    c.memset(c.byref(zeros), 0, c.sizeof(zeros))
    return [_raw(rank, rank.config(magic=1)), _raw(rank, zeros)]


@rule(
    "CommInitRankConfig",
    "The size of a configuration must be at least 16 bytes; 2.18 accepts any size",
    nccl={"2.18": [0, 8, 16, 20, 24], "2.24": [16, 20, 24]},
)
def config_size(rank: Rank) -> list[int]:
    return [
        size
        for size in (0, 8, 16, 20, 24)
        if _raw(rank, rank.config(blocking=1, size=size)) == "success"
    ]


@rule("CommInitRankConfig", "Fields beyond size are not read", nccl="success")
def config_size_cut(rank: Rank) -> str:
    return _raw(rank, rank.config(minCTAs=-7, size=24))


@rule(
    "CommInitRankConfig",
    "Bytes beyond the fields known to the library are not read",
    nccl="success",
)
def config_size_more(rank: Rank) -> str:
    config = rank.config()
    larger = c.create_string_buffer(b"\xfb" * 4096, 4096)
    config.size = 4096
    c.memmove(larger, c.byref(config), c.sizeof(config))
    return _raw(rank, larger)


@rule("CommInitRankConfig", "The version of a configuration is not checked", nccl=["success"] * 3)
def config_version(rank: Rank) -> list[str]:
    codes = []
    for version in (0, 21400, 99999):
        config = rank.config()
        config.version = version
        codes.append(_raw(rank, config))
    return codes


@rule("CommInitRankConfig", "A configuration is not modified", nccl=["success", True])
def config_unchanged(rank: Rank) -> list[Any]:
    config = rank.config()
    before = bytes(config)
    return [_raw(rank, config), bytes(config) == before]


@rule(
    "CommSplit",
    "A split rejects an invalid configuration, and the parent still works",
    nccl=["invalidArgument", "null", "success", "works"],
    ranks=2,
)
def config_of_split(rank: Rank) -> list[str]:
    comm = rank.create()
    code, child = rank.split(comm, blocking=5)
    return [code, handle(child), rank.state(comm), rank.works(comm)]
