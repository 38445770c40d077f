"""Generates the tables of docs/nccl-features.md: functions of nccl.h and their calls in Python.

The functions and their versions come from nccl_functions.inc. CALLS lists the call and the test of
each function, which tests/package/test_features.py checks. Run it after a change:
python -m tools.features
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tools import pages

ROOT = Path(__file__).parents[1]
ABI = ROOT / "csrc" / "abi"
DOCUMENT = ROOT / "docs" / "nccl-features.md"

_TEAMS = "nccl/test_device_comm.py::test_teams_of_a_communicator"

# The call in pynccl.nccl that covers each function, and its test: FILE::FUNCTION in tests/.
# Several calls are separated by spaces.
CALLS = {
    "ncclGetVersion": ("get_version", "nccl/test_values.py::test_version"),
    "ncclGetUniqueId": ("get_unique_id", "nccl/test_values.py::test_unique_id"),
    "ncclGetErrorString": ("NcclError", "nccl/test_values.py::test_error_texts"),
    "ncclGetLastError": (
        "NcclError Communicator.async_error",
        "nccl/test_values.py::test_error_texts",
    ),
    "ncclResetDebugInit": ("reset_debug", "package/test_features.py::test_reset_debug"),
    "ncclSetEncryption": ("set_encryption", "nccl/test_encryption.py::test_the_rules_of_nccl"),
    "ncclCommInitRank": (
        "Communicator",
        "raw/test_raw.py::test_every_function_of_a_communicator_works",
    ),
    "ncclCommInitRankConfig": (
        "Communicator Config",
        "nccl/test_communicator.py::test_properties",
    ),
    "ncclCommInitRankScalable": ("Communicator", "nccl/test_life.py::test_several_ids"),
    "ncclCommInitAll": ("Communicator.init_all", "nccl/test_groups.py::test_init_all"),
    "ncclCommFinalize": (
        "Communicator.finalize",
        "nccl/test_communicator.py::test_finalize_waits_and_ends_it",
    ),
    "ncclCommDestroy": (
        "Communicator.close",
        "nccl/test_communicator.py::test_close_waits_for_what_was_issued",
    ),
    "ncclCommAbort": (
        "Communicator.abort",
        "hostnccl/test_waiting.py::test_abort_frees_a_blocked_thread",
    ),
    "ncclCommRevoke": (
        "Communicator.revoke",
        "nccl/test_communicator.py::test_revoke_ends_blocked_calls",
    ),
    "ncclCommSplit": ("Communicator.split", "nccl/test_communicator.py::test_split"),
    "ncclCommShrink": (
        "Communicator.shrink",
        "nccl/test_life.py::test_one_thread_with_several_ranks",
    ),
    "ncclCommGetUniqueId": (
        "Communicator.get_unique_id",
        "nccl/test_life.py::test_grow_from_two_to_four",
    ),
    "ncclCommGrow": (
        "Communicator.grow Communicator.join",
        "nccl/test_life.py::test_grow_from_two_to_four",
    ),
    "ncclCommSuspend": (
        "Communicator.suspend",
        "nccl/test_suspension.py::test_memory_is_released",
    ),
    "ncclCommResume": ("Communicator.resume", "nccl/test_suspension.py::test_results_stay_right"),
    "ncclCommMemStats": (
        "Communicator.memory_stats MemoryStats",
        "nccl/test_suspension.py::test_memory_is_released",
    ),
    "ncclCommGetAsyncError": (
        "Communicator.async_error Communicator.ready Communicator.wait_ready",
        "nccl/test_nonblocking.py::test_a_whole_life",
    ),
    "ncclCommCount": (
        "Communicator.nranks",
        "nccl/test_communicator.py::test_properties",
    ),
    "ncclCommCuDevice": (
        "Communicator.device",
        "nccl/test_communicator.py::test_properties",
    ),
    "ncclCommUserRank": (
        "Communicator.rank",
        "nccl/test_communicator.py::test_properties",
    ),
    "ncclMemAlloc": ("Communicator.mem_alloc", "nccl/test_memory.py::test_allocated_buffers"),
    "ncclMemFree": ("Buffer.close", "nccl/test_memory.py::test_allocated_buffers"),
    "ncclCommRegister": (
        "Communicator.register",
        "nccl/test_leaks.py::test_streams_events_operators_and_buffers",
    ),
    "ncclCommDeregister": (
        "Registration.close",
        "nccl/test_leaks.py::test_streams_events_operators_and_buffers",
    ),
    "ncclCommWindowRegister": (
        "Communicator.register_window",
        "nccl/test_windows.py::test_lifecycle",
    ),
    "ncclCommWindowDeregister": ("Window.close", "nccl/test_windows.py::test_lifecycle"),
    "ncclWinGetUserPtr": ("Window.user_pointer", "nccl/test_windows.py::test_lifecycle"),
    "ncclPutSignal": ("Communicator.put_signal", "nccl/test_one_sided.py::test_values_on_streams"),
    "ncclSignal": ("Communicator.signal", "nccl/test_one_sided.py::test_values_on_streams"),
    "ncclWaitSignal": (
        "Communicator.wait_signal",
        "nccl/test_one_sided.py::test_values_on_streams",
    ),
    "ncclRedOpCreatePreMulSum": (
        "Communicator.pre_mul_sum",
        "nccl/test_values.py::test_own_operators",
    ),
    "ncclRedOpDestroy": ("RedOp.close", "nccl/test_values.py::test_own_operators"),
    "ncclSend": ("Communicator.send", "nccl/test_groups.py::test_random_messages"),
    "ncclRecv": ("Communicator.recv", "nccl/test_groups.py::test_random_messages"),
    "ncclGroupStart": ("group", "nccl/test_groups.py::test_random_messages"),
    "ncclGroupEnd": ("group", "nccl/test_groups.py::test_random_messages"),
    "ncclGroupSimulateEnd": ("simulate", "nccl/test_simulate.py::test_time_grows_with_bytes"),
    "ncclParamBind": ("Params.param", "nccl/test_params.py::test_every_type_is_kept"),
    "ncclParamGet": ("Param.raw", "nccl/test_params.py::test_every_type_is_kept"),
    "ncclParamGetParameter": ("Params Param.text", "nccl/test_params.py::test_they_are_a_mapping"),
    "ncclParamGetAllParameterKeys": ("params", "nccl/test_params.py::test_they_are_a_mapping"),
    "ncclParamDumpAll": ("Params.dump", "nccl/test_params.py::test_dump"),
    "ncclCommQueryProperties": (
        "Communicator.properties CommProperties",
        "nccl/test_device_comm.py::test_properties",
    ),
    "ncclDevCommCreate": (
        "Communicator.device_comm DeviceComm",
        "nccl/test_device_comm.py::test_lifecycle",
    ),
    "ncclDevCommDestroy": ("DeviceComm.close", "nccl/test_device_comm.py::test_lifecycle"),
    "ncclTeamWorld": ("Communicator.team_world Team", _TEAMS),
    "ncclTeamLsa": ("Communicator.team_lsa", _TEAMS),
    "ncclTeamRail": ("Communicator.team_rail", _TEAMS),
    "ncclTeamRankToWorld": ("Communicator.rank_to_world", _TEAMS),
    "ncclTeamRankToLsa": ("Communicator.rank_to_lsa", _TEAMS),
    "ncclGetLsaDevicePointer": ("Window.lsa_pointer", "nccl/test_windows.py::test_views"),
    "ncclGetPeerDevicePointer": (
        "Window.peer Window.peer_pointer Window.peer_pointers",
        "nccl/test_windows.py::test_views",
    ),
    "ncclGetLsaMultimemDevicePointer": (
        "Window.multimem_pointer",
        "nccl/test_windows.py::test_views",
    ),
    "ncclGetMultimemDevicePointer": (
        "DeviceComm.multimem_pointers",
        "nccl/test_device_comm.py::test_lifecycle",
    ),
}
_VALUES = "nccl/test_collectives.py::test_small"
for _name, _method in {
    "AllReduce": "all_reduce",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}.items():
    CALLS[f"nccl{_name}"] = (f"Communicator.{_method}", _VALUES)
    CALLS[f"nccl{_name}Config"] = (
        f"Communicator.{_method} CollConfig",
        "nccl/test_coll_config.py::test_values",
    )
# Functions that only kernels need are called by their own name.
for _name in (
    "ncclLsaBarrierCreateRequirement",
    "ncclGinBarrierCreateRequirement",
    "ncclLLA2ACalcSlots",
    "ncclLLA2ACreateRequirement",
    "ncclTeamCft",
    "ncclTeamCftMultimem",
    "ncclGetMultimemDeviceLeInfo",
    "ncclGetCftDeviceLeInfo",
    "ncclGetPeerDeviceLeInfo",
):
    CALLS[_name] = (f"raw.Library.{_name}", "hostnccl/test_device_api.py::test_functions")
CALLS["ncclBcast"] = ("Communicator.broadcast", _VALUES)
for _type in ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "Str"):
    CALLS[f"ncclParamGet{_type}"] = ("Param.get", "nccl/test_params.py::test_every_type_is_kept")

# How hostnccl differs from NCCL with HOSTNCCL_STRICT=1. Most differences are stricter.
DIFFERS = {
    "ncclGetUniqueId": "an id of another machine is rejected",
    "ncclResetDebugInit": "no effect: nothing is printed",
    "ncclSetEncryption": "authenticates the rendezvous; no data leaves the machine",
    "ncclCommInitRankScalable": "only the first id is used",
    "ncclCommInitAll": "the only device is 0; all ranks are on it",
    "ncclCommAbort": "ranks that wait for this one get an error",
    "ncclCommShrink": "after NCCL_SHRINK_ABORT, operations of the parent fail",
    "ncclCommSuspend": "releases the staging memory",
    "ncclCommGetAsyncError": "a dead rank is an error",
    "ncclCommCuDevice": "always 0",
    "ncclMemAlloc": "host memory",
    "ncclCommRegister": "no effect on performance",
    "ncclCommWindowRegister": "the error of one rank is an error of all ranks",
    "ncclSend": "returns before its receive for up to 4 messages of 8 KiB, as over some transports",
    "ncclGroupSimulateEnd": "uses its own model",
    "ncclParamGetAllParameterKeys": "the parameters are HOSTNCCL_*",
    "ncclCommQueryProperties": "no multimem, GIN and CFT",
    "ncclDevCommCreate": "headers of 2.31 and newer; sizes that differ between ranks are an error",
    "ncclLsaBarrierCreateRequirement": "barriers have a different layout",
    "ncclTeamCft": "a team without ranks",
    "ncclTeamCftMultimem": "a team without ranks",
    "ncclGetLsaMultimemDevicePointer": "no multimem: null",
    "ncclGetMultimemDevicePointer": "no multimem: null",
    "ncclGetMultimemDeviceLeInfo": "no CFT: an error",
    "ncclGetCftDeviceLeInfo": "no CFT: an error",
    "ncclGetPeerDeviceLeInfo": "no CFT: an error",
}
_HAS_EFFECT = {
    "blocking", "splitShare", "commName", "shrinkShare", "numRmaCtx", "numRmaSig", "rmaEagerInit",
    "algSelection", "forceAlgSelection", "userProfilerTag", "launchCompletionEvent",
}  # fmt: skip
_FIELDS_DIFFER = {
    "splitShare": "nothing is shared, but NCCL's rules for it hold",
    "shrinkShare": "nothing is shared, but NCCL's rules for it hold",
    "algSelection": "the algorithms are staged and direct",
    "userProfilerTag": "shown in error texts",
}


class Function(NamedTuple):
    """One function of the list."""

    section: str
    name: str
    since: int


def functions() -> list[Function]:
    """All functions, in the order of the list."""
    section, found = "", []
    lists = _read("nccl_functions.inc").partition("undef.inc.\n")[2]
    lists += _read("nccl_device_functions.inc").partition("nccl_device_types.h.\n")[2]
    for line in lists.splitlines():
        if line.startswith("// "):
            section = line[3:]
        elif match := re.match(r"FUNCTION\((\d+), [^,]+, (\w+)", line):
            found.append(Function(section, match[2], int(match[1])))
    return found


def _read(name: str) -> str:
    return (ABI / name).read_text()


def version(code: int) -> str:
    """Return ``2.28.7`` for 22807, and ``2.28`` for the first version of a release."""
    minor, patch = divmod(code % 10000, 100)
    return f"{code // 10000}.{minor}" + (f".{patch}" if patch else "")


def _calls(name: str) -> str:
    return ", ".join(f"`{call}`" for call in CALLS[name][0].split()) if name in CALLS else ""


def _test(name: str) -> str:
    return f"`{CALLS[name][1]}`" if name in CALLS else ""


def _fields(file: str, title: str) -> list[str]:
    head = "| nccl.h | cuda | attribute | differs on hosts |"
    lines = ["", f"## {title}", "", head, "|---|---|---|---|"]
    for since, name, attribute in re.findall(
        r"^FIELD\((\d+), [^,]+, (\w+), (\w+), .+\)$", _read(file), re.M
    ):
        differs = _FIELDS_DIFFER.get(name, "" if name in _HAS_EFFECT else "no effect")
        lines.append(f"| {name} | {version(int(since))} | `{attribute}` | {differs} |")
    return lines


def document(text: str) -> str:
    """Return the page with its tables replaced.

    Args:
        text: the page.

    Raises:
        ValueError: the page has no place for the tables.
    """
    lines: list[str] = []
    section = None
    for function in functions():
        if function.section != section:
            section = function.section
            head = "| nccl.h | cuda | call | test | differs on hosts |"
            lines += ["", f"## {section}", "", head, "|---|---|---|---|---|"]
        cells = (
            function.name,
            version(function.since),
            _calls(function.name),
            _test(function.name),
            DIFFERS.get(function.name, ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += _fields("config_fields.inc", "Fields of `Config` (ncclConfig_t)")
    lines += _fields("coll_config_fields.inc", "Fields of `CollConfig` (ncclCollConfig_t)")
    return pages.replaced(text, "tables", [*lines, ""])


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
