"""What nccl.h's functions, parameters and struct fields mean, for the reference of pynccl.raw.

The methods of ``raw.Library`` come from the lists of csrc/abi by a template; their docstrings are
C's declarations. This module has the words: :func:`function` gives a method's description with
Args, Returns and Raises, :func:`field` that of a struct's field. tests/package/test_reference.py
checks that nothing is missing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tools.features import ABI

__all__ = ["CONFIG_FIELDS", "FIELDS", "PAGES", "field", "function", "functions", "page"]

_SITE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api"


class Parameter(NamedTuple):
    """A parameter of a C function: its kind in the list and its name."""

    kind: str
    name: str


class _Declared(NamedTuple):
    result: str
    parameters: list[Parameter]


def functions() -> dict[str, _Declared]:
    """The declarations of all functions by name, in the order of the lists."""
    text = "".join(
        (ABI / file).read_text() for file in ("nccl_functions.inc", "nccl_device_functions.inc")
    )
    found = {}
    for result, name, rest in re.findall(r"^FUNCTION\(\d+, ([^,]+), (\w+)(.*)\)$", text, re.M):
        parameters = []
        for kind, arguments in re.findall(r"([A-Z]+)\(([^()]*)\)", rest):
            words = [part.strip() for part in arguments.split(",")]
            parameters.append(Parameter(kind, words[kind not in ("BUFFER", "STRINGS")]))
        found[name] = _Declared(result, parameters)
    return found


# --- what each function does

SUMMARIES = {
    "ncclGetVersion": "The version of the library.",
    "ncclGetUniqueId": "Make the id of a new communicator.",
    "ncclGetErrorString": "The text of a result.",
    "ncclGetLastError": "The text of the last error of this thread or of a communicator.",
    "ncclResetDebugInit": "Read NCCL_DEBUG and its related variables again.",
    "ncclSetEncryption": "Set the encryption of NCCL's TCP sockets.",
    "ncclCommInitRank": "Make a communicator; all ranks call it.",
    "ncclCommInitRankConfig": "Make a communicator with a configuration; all ranks call it.",
    "ncclCommInitRankScalable": "Make a communicator with several ids; all ranks call it.",
    "ncclCommInitAll": "Make the communicators of all ranks, in one process.",
    "ncclCommFinalize": "Finish what was issued on a communicator; then it can be destroyed.",
    "ncclCommDestroy": "Free a communicator.",
    "ncclCommAbort": "End what runs on a communicator, and free it.",
    "ncclCommRevoke": "End what runs on a communicator, which can then be shrunk or destroyed.",
    "ncclCommSplit": "Split a communicator; all its ranks call it.",
    "ncclCommShrink": "Make a communicator without some ranks of another one; the others call it.",
    "ncclCommGetUniqueId": "Make the id with which new ranks join a communicator that grows.",
    "ncclCommGrow": "Make a communicator with more ranks; its ranks and the new ones call it.",
    "ncclCommGetAsyncError": "The state of a communicator.",
    "ncclCommCount": "How many ranks a communicator has.",
    "ncclCommCuDevice": "The CUDA device of a communicator.",
    "ncclCommUserRank": "The rank of this process in a communicator.",
    "ncclCommSuspend": "Release memory of a communicator until it is resumed; all ranks call it.",
    "ncclCommResume": "Allocate again what ncclCommSuspend has released; all ranks call it.",
    "ncclCommMemStats": "How much memory a communicator has.",
    "ncclMemAlloc": "Allocate memory that NCCL can use without copies.",
    "ncclMemFree": "Free memory of ncclMemAlloc.",
    "ncclCommRegister": "Register a buffer for transfers without copies.",
    "ncclCommDeregister": "Undo ncclCommRegister.",
    "ncclCommWindowRegister": "Register memory that other ranks can access; all ranks call it.",
    "ncclCommWindowDeregister": "Undo ncclCommWindowRegister.",
    "ncclWinGetUserPtr": "The address that was registered as a window.",
    "ncclRedOpCreatePreMulSum": "Make the operator that multiplies by a scalar and sums.",
    "ncclRedOpDestroy": "Free an operator of ncclRedOpCreatePreMulSum.",
    "ncclReduce": "Reduce the buffers of all ranks, on one rank.",
    "ncclBcast": "Copy the buffer of one rank to all ranks, in place.",
    "ncclBroadcast": "Copy the buffer of one rank to all ranks.",
    "ncclAllReduce": "Reduce the buffers of all ranks, on every rank.",
    "ncclReduceScatter": "Reduce the buffers of all ranks; rank i gets block i.",
    "ncclAllGather": "Concatenate the buffers of all ranks, on every rank.",
    "ncclAlltoAll": "Send block j of rank i to rank j, as its block i.",
    "ncclGather": "Concatenate the buffers of all ranks, on one rank.",
    "ncclScatter": "Send block i of the buffer of one rank to rank i.",
    "ncclSend": "Send a buffer to a rank.",
    "ncclRecv": "Receive a buffer from a rank.",
    "ncclPutSignal": "Write to a window of another rank and signal it.",
    "ncclSignal": "Signal another rank.",
    "ncclWaitSignal": "Have a stream wait for signals of other ranks.",
    "ncclGroupStart": "Begin a group: calls until ncclGroupEnd are issued together.",
    "ncclGroupEnd": "End a group and issue it.",
    "ncclGroupSimulateEnd": "End a group without issuing it, and estimate its time.",
    "ncclParamBind": "A handle of a parameter.",
    "ncclParamGetStr": "The value of a parameter that is a string.",
    "ncclParamGet": "The bytes of the value of a parameter.",
    "ncclParamGetParameter": "The value of a parameter as text.",
    "ncclParamGetAllParameterKeys": "The names of all parameters.",
    "ncclParamDumpAll": "Print all parameters to NCCL's log.",
    "ncclCommQueryProperties": "The properties of a communicator.",
    "ncclDevCommCreate": "Make a device communicator; all ranks call it.",
    "ncclDevCommDestroy": "Free a device communicator.",
    "ncclLsaBarrierCreateRequirement": "Require barriers of an LSA team.",
    "ncclGinBarrierCreateRequirement": "Require barriers of a team over GIN.",
    "ncclLLA2ACalcSlots": "How many slots a low-latency all-to-all needs.",
    "ncclLLA2ACreateRequirement": "Require the memory of low-latency all-to-alls.",
    "ncclTeamWorld": "The team of all ranks.",
    "ncclTeamLsa": "The team of the ranks whose memory this rank can load and store.",
    "ncclTeamRail": "The team of the ranks with the same rank in their LSA teams.",
    "ncclTeamCft": "The team of the ranks that CFT reaches.",
    "ncclTeamCftMultimem": "The team of the ranks that CFT multicast reaches.",
    "ncclTeamRankToWorld": "The rank in the communicator of a rank of a team.",
    "ncclTeamRankToLsa": "The rank in the LSA team of a rank of a team.",
    "ncclGetLsaDevicePointer": "The address of a window in the memory of a rank of the LSA team.",
    "ncclGetPeerDevicePointer": "The address of a window in the memory of a rank.",
    "ncclGetLsaMultimemDevicePointer": "The multicast address of a window for the LSA team.",
    "ncclGetMultimemDevicePointer": "The multicast address of a window for a team.",
    "ncclGetMultimemDeviceLeInfo": "The logical endpoint of CFT multicast for a window.",
    "ncclGetCftDeviceLeInfo": "The logical endpoint of a rank of a CFT team for a window.",
    "ncclGetPeerDeviceLeInfo": "The logical endpoint of a rank for a window.",
}
for _bits in (8, 16, 32, 64):
    SUMMARIES[f"ncclParamGetI{_bits}"] = (
        f"The value of a parameter that is a signed {_bits}-bit integer."
    )
    SUMMARIES[f"ncclParamGetU{_bits}"] = (
        f"The value of a parameter that is an unsigned {_bits}-bit integer."
    )
for _name in [
    *("ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclAllGather"),
    *("ncclReduceScatter", "ncclAlltoAll", "ncclGather", "ncclScatter"),
]:
    SUMMARIES[f"{_name}Config"] = f"{SUMMARIES[_name][:-1]}, with a configuration of this call."

# --- the parameters; FUNCTION.PARAMETER where a function differs

PARAMETERS = {
    "buff": "the address of the buffer",
    "color": "ranks with the same one are in a communicator; NCCL_SPLIT_NOCOLOR for none",
    "comm": "the ncclComm_t",
    "commId": "the id that all ranks share",
    "commIds": "the ids that all ranks share",
    "config": "the configuration; None is NCCL's default",
    "count": "how many elements",
    "ctx": "the context: 0 to numRmaCtx - 1",
    "datatype": "the ncclDataType_t",
    "devComm": "the device communicator",
    "devlist": "the CUDA device of each rank; None is 0, 1, ...",
    "excludeRanksCount": "how many ranks are left out",
    "excludeRanksList": "the ranks that are left out",
    "flags": "must be 0",
    "ncclCommSuspend.flags": "NCCL_SUSPEND_MEM",
    "h": "the handle of ncclParamBind",
    "handle": "what ncclCommRegister returned",
    "key": "by which the ranks of a color are ordered",
    "ncclParamBind.key": "the name of the parameter",
    "ncclParamGetParameter.key": "the name of the parameter",
    "localbuff": "the address of what is written, in a symmetric window",
    "lsaRank": "the rank in the LSA team",
    "maxEltSize": "the size of the largest element in bytes",
    "maxElts": "how many elements a rank has at most",
    "maxLen": "how many bytes are returned at most",
    "mode": "an ncclCftTeamMode_t",
    "multimem": "the multicast memory of the team",
    "myrank": "this rank",
    "nBarriers": "how many barriers, one for each block of a kernel that uses one",
    "nBlocks": "how many blocks of a kernel use one",
    "nDesc": "how many descriptors",
    "nId": "how many ids",
    "nRanks": "how many ranks the new communicator has",
    "nSlots": "how many slots each has: see ncclLLA2ACalcSlots",
    "ndev": "how many ranks",
    "nranks": "how many ranks the communicator has",
    "offset": "the offset in the window, in bytes",
    "op": "the ncclRedOp_t, or what ncclRedOpCreatePreMulSum returned",
    "ncclRedOpDestroy.op": "what ncclRedOpCreatePreMulSum returned",
    "opCnt": "how many signals",
    "outHandle": "the handle, which ncclDevCommCreate fills; kernels take it",
    "outReq": "the requirement for ncclDevCommRequirements_t.resourceRequirementsList",
    "peer": "the other rank",
    "peerCft": "the rank in the CFT team",
    "peerWin": "the window of the other rank",
    "peerWinOffset": "the offset in the window, in bytes",
    "peerWorld": "the rank in the communicator",
    "props": "an initialised struct",
    "ptr": "the address",
    "rank": "this rank",
    "ncclCommGrow.rank": "the rank of a new rank; -1 for the ranks of the communicator",
    "ncclTeamRankToWorld.rank": "a rank of the team",
    "ncclTeamRankToLsa.rank": "a rank of the team",
    "recvbuff": "the address of the result",
    "recvcount": "how many elements the result has",
    "reqs": "what the device communicator shall have",
    "residence": "whether scalar is an address of the device (ncclScalarDevice) or of the host",
    "result": "the ncclResult_t",
    "revokeFlags": "NCCL_REVOKE_DEFAULT",
    "root": "the rank that has the input",
    "ncclReduce.root": "the rank that gets the result",
    "ncclReduceConfig.root": "the rank that gets the result",
    "ncclGather.root": "the rank that gets the result",
    "ncclGatherConfig.root": "the rank that gets the result",
    "scalar": "the address of the scalar",
    "sendbuff": "the address of this rank's input",
    "sendcount": "how many elements the input has",
    "shrinkFlags": "NCCL_SHRINK_DEFAULT, or NCCL_SHRINK_ABORT after an error",
    "sigIdx": "the number of the signal: 0 to numRmaSig - 1",
    "signalDescs": "the peers, and how many of their signals to wait for",
    "simInfo": "an initialised struct",
    "size": "the size in bytes",
    "stat": "the ncclCommMemStat_t",
    "stream": "the cudaStream_t; on hosts the handle of a Stream, 0 is the calling thread",
    "team": "the team",
    "cftTeam": "the CFT team",
    "uniqueId": "of ncclCommGetUniqueId; None on ranks of the communicator that need none",
    "win": "the ncclWindow_t",
    "winFlags": "a combination of NCCL_WIN_*, the same on all ranks",
    "window": "the ncclWindow_t",
}
for _name in ("ncclCommGrow", "ncclCommGetUniqueId", "ncclCommSplit", "ncclCommShrink"):
    PARAMETERS[f"{_name}.comm"] = "the ncclComm_t of the communicator that there is"
PARAMETERS["ncclCommGrow.comm"] += "; 0 for a new rank"
PARAMETERS["ncclGetLastError.comm"] = "the ncclComm_t; 0 for errors without one"
PARAMETERS["ncclSetEncryption.config"] = "the configuration; None is no encryption"

RESULTS = {
    "version": "the version, as 23203 for 2.32.3",
    "uniqueId": "the id",
    "comm": "the ncclComm_t",
    "newcomm": "the ncclComm_t; 0 where this rank is in none",
    "ncclCommInitAll.comm": "the ncclComm_t of each rank",
    "ncclCommInitRankScalable.newcomm": "the ncclComm_t",
    "asyncError": "the ncclResult_t: ncclInProgress until a non-blocking call is done",
    "count": "the number",
    "device": "the number of the device",
    "rank": "the rank",
    "value": "the value",
    "ptr": "the address",
    "handle": "the handle",
    "win": "the ncclWindow_t",
    "outUserPtr": "the address",
    "op": "the ncclRedOp_t",
    "simInfo": "the struct, with the estimated time in microseconds",
    "out": "the value",
    "len": "how many bytes the value has",
    "valueLen": "how many bytes the text has",
    "table": "the names",
    "tableLen": "how many there are",
    "props": "the struct, filled",
    "outDevComm": "the device communicator, which kernels take by value",
    "outPtr": "the address; 0 where the memory cannot be reached",
    "leId": "the number of the logical endpoint",
    "leOffset": "the offset there, in bytes",
}
_RETURNED = {
    "ncclGetErrorString": "the text",
    "ncclGetLastError": "the text; None where there was no error",
    "ncclLLA2ACalcSlots": "the number",
    "ncclTeamRankToWorld": "the rank",
    "ncclTeamRankToLsa": "the rank",
}
_GIVEN = ("IN", "FILLED", "ARRAY", "STRUCT", "INOUT")


def _meaning(table: dict[str, str], function: str, name: str) -> str:
    return table.get(f"{function}.{name}") or table[name]


def function(name: str) -> str:
    """The description of a method of ``raw.Library``, as a docstring.

    Args:
        name: of the function.

    Returns:
        The summary with Args, Returns and Raises.

    Raises:
        KeyError: the function, a parameter or a result is not described.
    """
    declared = functions()[name]
    lines = [SUMMARIES[name], ""]
    given = [one for one in declared.parameters if one.kind in _GIVEN]
    if given:
        lines.append("Args:")
        lines += [f"    {one.name}: {_meaning(PARAMETERS, name, one.name)}." for one in given]
        lines.append("")
    results = [
        _meaning(RESULTS, name, one.name)
        for one in declared.parameters
        if one.kind not in ("IN", "FILLED", "ARRAY", "STRUCT")
    ]
    if declared.result not in ("ncclResult_t", "void"):
        results = [_RETURNED.get(name, "the team")]
    if results:
        text = ", ".join(results)
        lines += ["Returns:", f"    {text[0].upper()}{text[1:]}.", ""]
    lines.append("Raises:")
    if given:
        lines.append(
            "    TypeError, ValueError: an argument has the wrong type or is out of range."
        )
    lines.append("    MissingFunctionError: the library does not have the function.")
    if declared.result == "ncclResult_t":
        lines.append("    NcclError: the result is neither ncclSuccess nor ncclInProgress.")
    return "\n".join(lines)


# --- the fields of the structs

_VERSIONED = {
    "size": "the size of the struct in bytes; set by the constructor",
    "magic": "a constant that NCCL checks; set by the constructor",
    "version": "the version of nccl.h whose struct it is; set by the constructor",
}
_NEXT = "the address of the next one in a list; 0 at its end"

FIELDS: dict[str, dict[str, str]] = {
    "ncclConfig_t": {
        **_VERSIONED,
        "blocking": "1: calls return when they are done; 0: they return ncclInProgress before",
        "cgaClusterSize": "the CTAs in a cluster, 0 to 8",
        "minCTAs": "the least number of CTAs of a kernel",
        "maxCTAs": "the largest number of CTAs of a kernel",
        "netName": 'the network to use, as "IB" or "Socket"',
        "splitShare": "1: communicators that are split from it share its resources",
        "trafficClass": "the traffic class of its network traffic",
        "commName": "its name in logs, profilers and flight records",
        "collnetEnable": "1: use the reductions of InfiniBand switches (SHARP)",
        "CTAPolicy": "a combination of NCCL_CTA_POLICY_*",
        "shrinkShare": "1: communicators that are shrunk from it share its resources",
        "nvlsCTAs": "the CTAs of kernels that use NVLink SHARP",
        "nChannelsPerNetPeer": "the channels to each peer over the network",
        "nvlinkCentricSched": "1: order work by the traffic of NVLink",
        "graphUsageMode": "0: no CUDA graphs, 1: one at a time, 2: several, or mixed with calls",
        "numRmaCtx": "how many contexts one-sided operations have",
        "maxP2pPeers": "with how many peers a rank exchanges messages at a time",
        "graphStreamOrdering": "1: captured collectives keep the order of their streams",
        "launchOrderImplicit": "1: launches on all such communicators are in the order of calls",
        "numRmaSig": "how many signals each context has",
        "rmaEagerInit": "1: make signals ready with the communicator, not with the first window",
        "hostCftMode": "an ncclHostCftMode_t: whether the host can query endpoints of CFT",
        "nvlsHostMode": "which parts of NVLink SHARP calls of the host use",
    },
    "ncclCollConfig_t": {
        **_VERSIONED,
        "ext": "the address of extensions; 0 for none",
        "minCTAs": "the least number of CTAs",
        "maxCTAs": "the largest number of CTAs",
        "nvlsCTAs": "the CTAs of kernels that use NVLink SHARP",
        "cgaClusterSize": "the CTAs in a cluster, 0 to 8",
        "algSelection": 'the algorithms to choose from, as "ring,tree" or "^nvls"',
        "forceAlgSelection": "1: an algorithm that cannot be used is an error",
        "CTAPolicy": "a combination of NCCL_CTA_POLICY_*",
        "userProfilerTag": "a number that NCCL passes to profilers",
        "launchCompletionEvent": "a cudaEvent_t that is recorded when the operation is launched",
    },
    "ncclEncryptionConfig_t": {
        **_VERSIONED,
        "mode": "0: none, 1: a pre-shared key",
        "psk": "the key; it can be set and is not shown",
    },
    "ncclSimInfo_t": {
        **_VERSIONED,
        "estimatedTime": "the estimated time of the group in microseconds",
    },
    "ncclWaitSignalDesc_t": {
        "opCnt": "how many signals to wait for",
        "peer": "the rank that signals",
        "sigIdx": "the number of the signal",
        "ctx": "the context",
    },
    "ncclTeam_t": {
        "nRanks": "how many ranks the team has",
        "rank": "the rank of this process in the team",
        "stride": "the distance of its ranks in the communicator",
    },
    "ncclMultimemHandle_t": {"mcBasePtr": "the multicast address of the team's memory"},
    "ncclLsaBarrierHandle_t": {
        "bufHandle": "the place of the barriers in the resource buffer",
        "nBarriers": "how many there are",
    },
    "ncclGinBarrierHandle_t": {"signal0": "the first signal of the barriers"},
    "ncclLLA2AHandle_t": {
        "bufHandle": "the place of the memory in the resource buffer",
        "nSlots": "how many slots it has",
    },
    "ncclDevResourceRequirements_t": {
        "next": _NEXT,
        "bufferSize": "bytes of memory on each rank, in the resource buffer",
        "bufferAlign": "the alignment of that memory in bytes",
        "outBufferHandle": "where the ncclDevResourceHandle of the memory is written; 0 for none",
        "ginSignalCount": "how many GIN signals",
        "ginCounterCount": "how many GIN counters",
        "outGinSignalStart": "the address where the number of the first signal is written",
        "outGinCounterStart": "the address where the number of the first counter is written",
    },
    "ncclTeamRequirements_t": {
        "next": _NEXT,
        "team": "the team",
        "multimem": "whether it needs multicast memory",
        "outMultimemHandle": "the address where its ncclMultimemHandle is written; 0 for none",
    },
    "ncclDevCommRequirements_t": {
        **_VERSIONED,
        "resourceRequirementsList": "the address of the first requirement of resources; 0 for none",
        "teamRequirementsList": "the address of the first requirement of a team; 0 for none",
        "lsaMultimem": "whether kernels use multimem instructions on the memory of the LSA team",
        "barrierCount": "how many barriers of all ranks",
        "lsaBarrierCount": "how many barriers of the LSA team",
        "railGinBarrierCount": "how many barriers of the rail team over GIN",
        "lsaLLA2ABlockCount": "how many blocks use low-latency all-to-alls of the LSA team",
        "lsaLLA2ASlotCount": "how many slots these have",
        "ginForceEnable": "whether to connect GIN where nothing else requires it",
        "ginContextCount": "how many GIN contexts; a hint",
        "ginSignalCount": "how many GIN signals",
        "ginCounterCount": "how many GIN counters",
        "ginConnectionType": "an ncclGinConnectionType_t: the ranks that GIN connects",
        "ginExclusiveContexts": "whether no other device communicator uses its contexts",
        "ginQueueDepth": "the entries of a GIN queue; 0 is NCCL's choice",
        "ginTrafficClass": "the traffic class of GIN",
        "worldGinBarrierCount": "how many barriers of all ranks over GIN",
        "ginStrongSignalsRequired": "whether kernels use strong signals",
        "ginVaSignalsRequired": "whether kernels signal addresses in windows",
        "ginCustomStride": "the stride of the connections of NCCL_GIN_CONNECTION_CUSTOM_STRIDE",
        "ginType": "the ncclGinType_t that is required",
        "useRuntimeVersion": "whether the result has the layout of the library, not of version",
        "cftCaps": "an ncclCftCap_t: what kernels use of CFT",
        "cftBarrierCount": "how many CFT barriers",
    },
    "ncclCommProperties_t": {
        **_VERSIONED,
        "rank": "the rank of this process",
        "nRanks": "how many ranks there are",
        "cudaDev": "the number of the CUDA device",
        "nvmlDev": "the index of the device in NVML",
        "deviceApiSupport": "whether device communicators can be made",
        "multimemSupport": "whether there are addresses for multimem instructions",
        "ginType": "an ncclGinType_t: how kernels reach other LSA teams",
        "nLsaTeams": "how many LSA teams there are",
        "hostRmaSupport": "whether the host can put and signal",
        "railedGinType": "the same as ginType, within rails",
        "commHash": "a number that is the same on all ranks",
        "ginMinStride": "the least stride of GIN connections",
        "ginConnectionType": "an ncclGinConnectionType_t: the ranks that GIN can connect",
        "ginSupport": "for each ncclGinType_t whether it is supported",
        "devCommRuntimeVersionSize": "the size of the library's ncclDevComm in bytes",
        "cftSupport": "whether CFT is supported",
        "cftMulticastSupport": "whether CFT multicast is supported",
        "cftCountedSupport": "whether counted CFT windows are supported",
    },
    "ncclDevComm_t": {
        "magic": "a constant that kernels check",
        "version": "the version of NCCL whose layout it has",
        "rank": "the rank of this process",
        "nRanks": "how many ranks there are",
        "lsaRank": "the rank in the LSA team",
        "lsaSize": "how many ranks the LSA team has",
        "resourceWindow": "the window of the resource buffer",
        "lsaMultimem": "the multicast memory of the LSA team",
        "lsaBarrier": "the barriers of the LSA team",
        "railGinBarrier": "the barriers of the rail team",
        "ginSignalCount": "how many GIN signals it has",
        "ginCounterCount": "how many GIN counters it has",
        "ginContextCount": "how many GIN contexts it has",
    },
}


def field(struct: str, name: str) -> str:
    """The description of a struct's field.

    Args:
        struct: the name of the class in pynccl.raw.
        name: of the field.

    Returns:
        A sentence.

    Raises:
        KeyError: it is not described.
    """
    text = FIELDS[struct][name]
    return f"{text[0].upper()}{text[1:]}."


# The fields of ncclConfig_t by the names that nccl.Config has for them.
CONFIG_FIELDS = {
    re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", "_", field).lower(): field
    for field in FIELDS["ncclConfig_t"]
}


# --- where NVIDIA describes them: the page of the user guide by name

PAGES = {
    "group": "ncclGroupStart ncclGroupEnd ncclGroupSimulateEnd",
    "ops": "ncclRedOpCreatePreMulSum ncclRedOpDestroy",
    "p2p": "ncclSend ncclRecv ncclPutSignal ncclSignal ncclWaitSignal",
    "colls": "ncclAllReduce ncclBroadcast ncclBcast ncclReduce ncclAllGather ncclReduceScatter "
    "ncclAlltoAll ncclGather ncclScatter",
    "types": "ncclComm_t ncclResult_t ncclDataType_t ncclRedOp_t ncclScalarResidence_t "
    "ncclConfig_t ncclCollConfig_t ncclSimInfo_t ncclCommMemStat_t ncclWindow_t "
    "ncclWaitSignalDesc_t ncclEncryptionConfig_t ncclHostCftMode_t",
    "device_setup": "ncclDevComm ncclDevCommCreate ncclDevCommDestroy ncclDevCommRequirements "
    "ncclCommQueryProperties ncclCommProperties_t ncclGinType_t ncclGinConnectionType_t "
    "ncclGetLsaDevicePointer ncclGetPeerDevicePointer ncclGetLsaMultimemDevicePointer "
    "ncclGetMultimemDevicePointer",
    "device_cft": "ncclTeamCft ncclTeamCftMultimem ncclGetCftDeviceLeInfo "
    "ncclGetPeerDeviceLeInfo ncclGetMultimemDeviceLeInfo",
}
_PAGE_OF = {name: page for page, names in PAGES.items() for name in names.split()}
_PYTHON_NAMES = {
    "ncclDevComm_t": "ncclDevComm",
    "ncclDevCommRequirements_t": "ncclDevCommRequirements",
}
# Without an entry in the user guide of 2.32, or on a page that is not known here.
_WITHOUT_PAGE = re.compile(
    r"ncclUniqueId|nccl(LsaBarrier|GinBarrier|LLA2A|Team(World|Lsa|Rail|Rank|_t|Requirements))|"
    r"ncclLsaBarrierHandle|ncclMultimemHandle|ncclDevResource|ncclResetDebugInit|ncclWinGetUserPtr|"
    r"ncclParam|ncclSetEncryption"
)


def page(name: str) -> str | None:
    """The address of NVIDIA's description of a name of nccl.h.

    Args:
        name: of a function or a type.

    Returns:
        The address, that of the overview for what has no description of its own; None for what is
        no function and no type of nccl.h.
    """
    name = _PYTHON_NAMES.get(name, name)
    if found := _PAGE_OF.get(name.removesuffix("Config")) or _PAGE_OF.get(name):
        return f"{_SITE}/{found}.html#c.{name}"
    if _WITHOUT_PAGE.match(name):
        return f"{_SITE}.html"
    if name in functions():
        return f"{_SITE}/comms.html#c.{name}"
    return None
