"""Checks csrc/abi's plugin structs against NCCL's layouts, and their names against real libraries.

The headers of plugins are in NCCL's sources, not in its wheels. The layouts are therefore recorded
here, as measured by a compiler on the headers of NVIDIA/nccl at the tags below (x86-64). Libraries
contain the names of the symbols that they look up in a plugin.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.abi import declarations as decl
from tests.abi.report import Report
from tests.abi.static_checks import Source

__all__ = ["Version", "check_symbols", "layout_source", "versions"]

_TUNER = "name=0 init=8 getCollInfo=16 finalize=24"
_PROFILER = "name=0 init=8 startEvent=16 stopEvent=24 recordEventState=32 finalize=40"
_EVENT = "type=0 parent=8 rank=16"
# Shared by all versions from 1, 3 and 4 on.
_PROXY = """
proxy.pid=24 proxy.channel=28 proxy.peer=32 proxy.steps=36 proxy.chunk=40 proxy.sends=44
"""
_CHANNEL_3 = " kernel.channel=24"
_CHANNEL_4 = f"{_CHANNEL_3} kernel.time=32"
_EVENT_1 = f"""{_EVENT} {_PROXY}
coll.call.sequence=40 coll.call.function=48 coll.call.sendbuff=56 coll.call.recvbuff=64
coll.call.count=72 coll.call.root=80 coll.call.dtype=84 coll.call.op=88 coll.traffic=96
coll.choice.channels=104 coll.choice.warps=105 coll.choice.algorithm=106 coll.choice.protocol=107
coll.choice.collnet=108 coll.choice.nvls=112
p2p.function=40 p2p.buffer=48 p2p.dtype=56 p2p.count=64 p2p.peer=72
"""
# Shared by versions 2 and 3, and from 4 on.
_EVENT_2 = f"""{_EVENT} {_PROXY}
coll.call.sequence=40 coll.call.function=48 coll.call.sendbuff=56 coll.call.recvbuff=64
coll.call.count=72 coll.call.root=80 coll.call.dtype=88
p2p.function=40 p2p.buffer=48 p2p.dtype=56 p2p.count=64 p2p.peer=72
"""
_EVENT_4 = f"""{_EVENT} {_PROXY} {_CHANNEL_4}
coll.call.sequence=24 coll.call.function=32 coll.call.sendbuff=40 coll.call.recvbuff=48
coll.call.count=56 coll.call.root=64 coll.call.dtype=72 coll.choice.channels=80
coll.choice.warps=81 coll.choice.algorithm=88 coll.choice.protocol=96
p2p.function=24 p2p.buffer=32 p2p.dtype=40 p2p.count=48 p2p.peer=56 p2p.channels=60
"""
_CHOICE_2 = (
    "coll.choice.channels=104 coll.choice.warps=105 "
    "coll.choice.algorithm=112 coll.choice.protocol=120"
)
_CHOICE_3 = (
    "coll.choice.channels=96 coll.choice.warps=97 "
    "coll.choice.algorithm=104 coll.choice.protocol=112"
)

# By struct: the tag, NCCL's name, the size, and the offset of each field.
LAYOUTS = {
    "TunerV2": ("v2.21.5-1", "ncclTuner_v2_t", 32, _TUNER),
    "TunerV3": ("v2.22.3-1", "ncclTuner_v3_t", 32, _TUNER),
    "TunerV4": ("v2.24.3-1", "ncclTuner_v4_t", 32, _TUNER),
    "TunerV5": ("v2.28.9-1", "ncclTuner_v5_t", 32, _TUNER),
    "TunerV6": ("v2.30.7-1", "ncclTuner_v6_t", 40, f"{_TUNER} getChunkSize=32"),
    "ProfilerV1": ("v2.23.4-1", "ncclProfiler_v1_t", 48, _PROFILER),
    "ProfilerV2": ("v2.24.3-1", "ncclProfiler_v2_t", 48, _PROFILER),
    "ProfilerV3": ("v2.26.6-1", "ncclProfiler_v3_t", 48, _PROFILER),
    "ProfilerV4": ("v2.27.7-1", "ncclProfiler_v4_t", 48, _PROFILER),
    "ProfilerV5": ("v2.28.9-1", "ncclProfiler_v5_t", 48, _PROFILER),
    "ProfilerV6": ("v2.30.7-1", "ncclProfiler_v6_t", 48, _PROFILER),
    "ProfilerEventV1": ("v2.23.4-1", "ncclProfilerEventDescr_v1_t", 120, _EVENT_1),
    "ProfilerEventV2": (
        "v2.24.3-1",
        "ncclProfilerEventDescr_v2_t",
        128,
        _EVENT_2 + _CHOICE_2,
    ),
    "ProfilerEventV3": (
        "v2.26.6-1",
        "ncclProfilerEventDescr_v3_t",
        120,
        _EVENT_2 + _CHOICE_3 + _CHANNEL_3,
    ),
    "ProfilerEventV4": ("v2.27.7-1", "ncclProfilerEventDescr_v4_t", 104, _EVENT_4),
    "ProfilerEventV5": (
        "v2.28.9-1 and v2.30.7-1",
        "ncclProfilerEventDescr_v5_t and _v6_t",
        112,
        f"{_EVENT_4} coll.group=104 p2p.group=64",
    ),
}
# NCCL's values of csrc/abi's enums: ncclProfile... and ncclProfiler... of the same tags.
_VALUES = """
kProfileGroup=1 kProfileColl=2 kProfileP2p=4 kProfileProxyOp=8 kProfileProxyStep=16
kProfileKernelChannel=64 kProfileGroupApi=256 kProfileCollApi=512 kProfileP2pApi=1024
kStepSendGpuWait=8 kStepSendWait=9 kStepReceiveWait=10 kStepReceiveFlushWait=11
kStepReceiveGpuWait=12 kStepSendPeerWait=20 kKernelChannelStop=22
"""
# Used by libraries, but not implemented: obsolete, or of NCCL 2.31, whose header is not public.
_OTHERS = {"ncclTunerPlugin_v1", "ncclProfiler_v7"}


class Version(NamedTuple):
    """A row of nccl_plugin_versions.inc."""

    interface: str
    since: int
    number: int
    symbol: str


def versions() -> list[Version]:
    """Read the versions of the plugin interfaces that csrc/plugin implements."""
    text = decl.without_comments((decl.ABI / "nccl_plugin_versions.inc").read_text())
    rows = re.findall(r"^(TUNER|PROFILER)\((\d+), (\d+), (\w+)\)$", text, re.MULTILINE)
    return [Version(kind, int(since), int(number), name) for kind, since, number, name in rows]


def layout_source() -> Source:
    """Return static assertions of the layouts."""
    source = Source('#include "abi/nccl_plugin_types.h"', "#include <type_traits>")
    for name, (tag, theirs, size, fields) in LAYOUTS.items():
        where = f"{name}, {theirs} of {tag}"
        source.check(f"std::is_standard_layout_v<abi::{name}>", f"{where}: not a plain struct")
        source.check(f"sizeof(abi::{name}) == {size}", f"{where}: size")
        for field, offset in (one.split("=") for one in fields.split()):
            source.check(f"offsetof(abi::{name}, {field}) == {offset}", f"{where}: {field}")
    for name, value in (one.split("=") for one in _VALUES.split()):
        source.check(f"abi::{name} == {value}", f"{name} of NCCL's profiler.h")
    for row in versions():
        if f"{row.interface.title()}V{row.number}" not in LAYOUTS:
            source.check("false", f"{row.symbol}: no layout is recorded")
    return source


def check_symbols(report: Report, title: str, version: int, library: Path) -> None:
    """Check that a library looks up exactly the plugin symbols that the table lists for it."""
    found = set(re.findall(rb"nccl(?:TunerPlugin|Profiler)_v\d+", library.read_bytes()))
    names = {name.decode() for name in found}
    rows = versions()
    problems = [
        f"{row.symbol} is {'not ' if row.since <= version else ''}named by the library"
        for row in rows
        if (row.symbol in names) != (row.since <= version)
    ]
    known = {row.symbol for row in rows} | _OTHERS
    problems += [f"{name} is not in the table" for name in sorted(names - known)]
    report.check(f"{title}: plugin symbols", len(rows), "names", problems)
