"""Writes docs/nccl-features.md: every function of nccl.h, who has it, and how Python calls it.

The functions and their versions come from nccl_functions.inc, what hostnccl has from unsupported.h;
which object covers a function, and which test proves it, is said here, and tests/test_features.py
holds it against the package and the tests. Run it after a change: python csrc/abi/features.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ABI = Path(__file__).parent
ROOT = ABI.parents[1]
DOCUMENT = ROOT / "docs" / "nccl-features.md"

# The call in pynccl.nccl that covers a function, and a test of it: FILE::FUNCTION in tests/.
# Several calls are separated by spaces.
CALLS = {
    "ncclGetVersion": ("get_version", "test_values.py::test_version"),
    "ncclGetUniqueId": ("get_unique_id", "test_values.py::test_unique_id"),
    "ncclGetErrorString": ("NcclError", "test_values.py::test_errors_say_where_and_why"),
    "ncclGetLastError": (
        "NcclError Communicator.async_error",
        "test_values.py::test_errors_say_where_and_why",
    ),
    "ncclResetDebugInit": ("reset_debug", "test_features.py::test_reset_debug"),
    "ncclSetEncryption": ("set_encryption", "test_encryption.py::test_the_rules_of_nccl"),
    "ncclCommInitRank": (
        "Communicator",
        "test_raw.py::test_every_function_of_a_communicator_works",
    ),
    "ncclCommInitRankConfig": (
        "Communicator Config",
        "test_communicator.py::test_what_it_says_of_itself",
    ),
    "ncclCommInitRankScalable": ("Communicator", "test_life.py::test_several_ids"),
    "ncclCommInitAll": ("Communicator.init_all", "test_groups.py::test_init_all"),
    "ncclCommFinalize": (
        "Communicator.finalize",
        "test_communicator.py::test_finalize_waits_and_ends_it",
    ),
    "ncclCommDestroy": (
        "Communicator.close",
        "test_communicator.py::test_close_waits_for_what_was_issued",
    ),
    "ncclCommAbort": ("Communicator.abort", "test_waiting.py::test_abort_frees_a_blocked_thread"),
    "ncclCommRevoke": ("Communicator.revoke", "test_revoke.py::test_revoke_frees_who_is_blocked"),
    "ncclCommSplit": ("Communicator.split", "test_communicator.py::test_split"),
    "ncclCommShrink": (
        "Communicator.shrink",
        "test_life.py::test_shrink_with_abort_when_a_rank_hangs_or_is_dead",
    ),
    "ncclCommGetUniqueId": (
        "Communicator.get_unique_id",
        "test_life.py::test_grow_from_two_to_four",
    ),
    "ncclCommGrow": (
        "Communicator.grow Communicator.join",
        "test_life.py::test_grow_from_two_to_four",
    ),
    "ncclCommSuspend": ("Communicator.suspend", "test_suspension.py::test_memory_is_given_back"),
    "ncclCommResume": ("Communicator.resume", "test_suspension.py::test_results_stay_right"),
    "ncclCommMemStats": (
        "Communicator.memory_stats MemoryStats",
        "test_suspension.py::test_memory_is_given_back",
    ),
    "ncclCommGetAsyncError": (
        "Communicator.async_error Communicator.ready Communicator.wait_ready",
        "test_nonblocking.py::test_a_whole_life",
    ),
    "ncclCommCount": ("Communicator.nranks", "test_communicator.py::test_what_it_says_of_itself"),
    "ncclCommCuDevice": (
        "Communicator.device",
        "test_communicator.py::test_what_it_says_of_itself",
    ),
    "ncclCommUserRank": ("Communicator.rank", "test_communicator.py::test_what_it_says_of_itself"),
    "ncclMemAlloc": ("Communicator.mem_alloc", "test_buffers.py::test_allocated_buffers"),
    "ncclMemFree": ("Buffer.close", "test_buffers.py::test_allocated_buffers"),
    "ncclCommRegister": (
        "Communicator.register",
        "test_leaks.py::test_streams_events_operators_and_buffers",
    ),
    "ncclCommDeregister": (
        "Registration.close",
        "test_leaks.py::test_streams_events_operators_and_buffers",
    ),
    "ncclCommWindowRegister": (
        "Communicator.register_window",
        "test_windows.py::test_lifecycle",
    ),
    "ncclCommWindowDeregister": ("Window.close", "test_windows.py::test_lifecycle"),
    "ncclWinGetUserPtr": ("Window.user_pointer", "test_windows.py::test_lifecycle"),
    "ncclPutSignal": ("Communicator.put_signal", "test_one_sided.py::test_values_on_streams"),
    "ncclSignal": ("Communicator.signal", "test_one_sided.py::test_values_on_streams"),
    "ncclWaitSignal": ("Communicator.wait_signal", "test_one_sided.py::test_values_on_streams"),
    "ncclRedOpCreatePreMulSum": ("Communicator.pre_mul_sum", "test_values.py::test_own_operators"),
    "ncclRedOpDestroy": ("RedOp.close", "test_values.py::test_own_operators"),
    "ncclSend": ("Communicator.send", "test_groups.py::test_random_messages"),
    "ncclRecv": ("Communicator.recv", "test_groups.py::test_random_messages"),
    "ncclGroupStart": ("group", "test_groups.py::test_random_messages"),
    "ncclGroupEnd": ("group", "test_groups.py::test_random_messages"),
    "ncclGroupSimulateEnd": ("simulate", "test_simulate.py::test_time_grows_with_bytes"),
    "ncclParamBind": ("Params.param", "test_params.py::test_every_type_is_kept"),
    "ncclParamGet": ("Param.raw", "test_params.py::test_every_type_is_kept"),
    "ncclParamGetParameter": ("Params Param.text", "test_params.py::test_they_are_a_mapping"),
    "ncclParamGetAllParameterKeys": ("params", "test_params.py::test_they_are_a_mapping"),
    "ncclParamDumpAll": ("Params.dump", "test_params.py::test_dump"),
}
_VALUES = "test_collectives.py::test_small"
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
        "test_coll_config.py::test_values",
    )
CALLS["ncclBcast"] = ("Communicator.broadcast", _VALUES)
for _type in ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "Str"):
    CALLS[f"ncclParamGet{_type}"] = ("Param.get", "test_params.py::test_every_type_is_kept")

HEAD = """\
# NCCL's features

Every function of nccl.h 2.32, in its order. **cuda**: the NCCL that has it; an older one raises
`MissingFunctionError`, which names this version. **host**: whether hostnccl has it. **call**: what
covers it in `pynccl.nccl`. `pynccl.raw` has each under its own name. **test**: one that proves it,
in `tests/`.

This page is written by `python csrc/abi/features.py` and checked by `tests/test_features.py`.
"""


class Function(NamedTuple):
    """One function of the list."""

    section: str
    name: str
    since: int
    on_host: bool


def functions() -> list[Function]:
    """All functions, in the order of the list."""
    unsupported = set(
        re.findall(r"define HOSTNCCL_UNSUPPORTED_(\w+)", _read("../hostnccl/api/unsupported.h"))
    )
    section, found = "", []
    for line in _read("nccl_functions.inc").partition("undef.inc.\n")[2].splitlines():
        if line.startswith("// "):
            section = line[3:]
        elif match := re.match(r"FUNCTION\((\d+), [^,]+, (\w+)", line):
            found.append(Function(section, match[2], int(match[1]), match[2] not in unsupported))
    return found


def _read(name: str) -> str:
    return (ABI / name).read_text()


def version(code: int) -> str:
    """``2.28.7`` for 22807; a release's first version as ``2.28``."""
    minor, patch = divmod(code % 10000, 100)
    return f"{code // 10000}.{minor}" + (f".{patch}" if patch else "")


def _calls(name: str) -> str:
    return ", ".join(f"`{call}`" for call in CALLS[name][0].split()) if name in CALLS else ""


def _test(name: str) -> str:
    return f"`{CALLS[name][1]}`" if name in CALLS else ""


def _fields(file: str, title: str) -> str:
    lines = [f"\n## {title}\n", "| nccl.h | cuda | attribute |", "|---|---|---|"]
    for since, name, attribute in re.findall(
        r"^FIELD\((\d+), .+, (\w+), (\w+)\)$", _read(file), re.M
    ):
        lines.append(f"| {name} | {version(int(since))} | `{attribute}` |")
    return "\n".join(lines) + "\n"


def document() -> str:
    """The whole page."""
    text, section = HEAD, None
    for function in functions():
        if function.section != section:
            section = function.section
            text += f"\n## {section}\n\n| nccl.h | cuda | host | call | test |\n"
            text += "|---|---|---|---|---|\n"
        cells = (
            function.name,
            version(function.since),
            "yes" if function.on_host else "no",
            _calls(function.name),
            _test(function.name),
        )
        text += "| " + " | ".join(cells) + " |\n"
    text += _fields("config_fields.inc", "Fields of `Config` (ncclConfig_t)")
    text += _fields("coll_config_fields.inc", "Fields of `CollConfig` (ncclCollConfig_t)")
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(document())
