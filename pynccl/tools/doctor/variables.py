"""Environment variables: those that NCCL, hostnccl and pynccl read, and unknown ones."""

from __future__ import annotations

import difflib
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pynccl.libraries import PROVIDERS
from pynccl.tools.doctor.finding import Finding, Level
from pynccl.tools.doctor.library import Facts

__all__ = ["PYNCCL", "examine"]

PYNCCL: Final = {
    "PYNCCL_BUILD_BACKEND": "read by pip: builds the torch.distributed backend with the package",
    "PYNCCL_BUILT": "read by setup.py: the extension is already built (make)",
    "PYNCCL_CACHE": "the directory of components that are built at first use",
    "PYNCCL_CHECK": "1: ranks compare their operations while they run",
    "PYNCCL_COMPAT_PROVIDER": "the provider of pynccl.compat.cupy_nccl",
    "PYNCCL_EXPLAIN": "has NCCL load the plugin of nccl.explain()",
    "PYNCCL_FLIGHT_FILE": "the file for the flight record of a process when an operation fails",
    "PYNCCL_HOSTNCCL_LIBRARY": "the path of another libhostnccl.so",
    "PYNCCL_NCCL_DEVICE_LIBRARY": "the path of NCCL's device library (bitcode) for Triton",
    "PYNCCL_NCCL_INCLUDE": "the directory of nccl.h and nccl_device.h",
    "PYNCCL_NCCL_LIBRARY": "the path of libnccl.so.2",
    "PYNCCL_NVTX": "1: a range of NVTX for each operation",
    "PYNCCL_ON_TIMEOUT": "the reaction to an operation that takes too long: raise or abort",
    "PYNCCL_OPENRLHF": "set by the adapter of OpenRLHF, for the processes that vLLM starts",
    "PYNCCL_PROVIDER": "the default provider: cuda or host",
    "PYNCCL_RECORD": "records the operations of the process to this file",
    "PYNCCL_RECORD_LIMIT": "the maximum size of a recording, in bytes",
    "PYNCCL_TIMEOUT": "the time limit of an operation, in seconds",
    "PYNCCL_TRACE": "writes a trace of the process to this file",
    "PYNCCL_TUNING": "the tuning file, whose choices nccl.explain()'s plugin forces",
    "PYNCCL_WEIGHTS_KEY": "the key of sessions of pynccl.weights, which is secret",
    "PYNCCL_WERROR": "read by the build: warnings are errors",
}

# Names that torch gave to its own settings before TORCH_NCCL_*; NCCL and pynccl do not read them.
_OF_TORCH = {
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
}

# Those that NVIDIA documents.
_DOCUMENTATION = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_DOCUMENTED = """
NCCL_ALGO NCCL_ALLGATHERV_ENABLE NCCL_ALLOC_P2P_NET_LL_BUFFERS NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE
NCCL_CHECKS_DISABLE NCCL_CHECK_MODE NCCL_CHECK_POINTERS NCCL_COLLNET_ENABLE
NCCL_COLLNET_NODE_THRESHOLD NCCL_COMM_BLOCKING NCCL_COMM_ID NCCL_COMM_SHRINK_SHARE_RESOURCES
NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_CONF_FILE NCCL_CREATE_THREAD_CONTEXT NCCL_CROSS_NIC
NCCL_CTA_POLICY NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DEBUG NCCL_DEBUG_FILE
NCCL_DEBUG_SUBSYS NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_DMABUF_ENABLE
NCCL_ENV_PLUGIN NCCL_GDRCOPY_ENABLE NCCL_GDR_FLUSH_DISABLE NCCL_GIN_ENABLE NCCL_GIN_TYPE
NCCL_GRAPH_DUMP_FILE NCCL_GRAPH_DUMP_FILE_RANK NCCL_GRAPH_FILE NCCL_GRAPH_HELPER_DISABLE
NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_HOSTID NCCL_IB_ADAPTIVE_ROUTING
NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_AR_THRESHOLD NCCL_IB_CUDA_SUPPORT NCCL_IB_DISABLE
NCCL_IB_ECE_ENABLE NCCL_IB_FIFO_TC NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_MERGE_NICS
NCCL_IB_MERGE_VFS NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_PKEY NCCL_IB_QPS_PER_CONNECTION
NCCL_IB_RETRY_CNT NCCL_IB_RETURN_ASYNC_EVENTS NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL
NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_IB_USE_INLINE NCCL_IGNORE_CPU_AFFINITY
NCCL_IPC_USE_ABSTRACT_SOCKET NCCL_LAUNCH_MODE NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LAUNCH_RACE_FATAL
NCCL_LEGACY_CUDA_REGISTER NCCL_LL128_BUFFSIZE NCCL_LL_BUFFSIZE NCCL_LL_THRESHOLD NCCL_LOCAL_REGISTER
NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MAX_NRINGS NCCL_MAX_P2P_NCHANNELS NCCL_MEM_SYNC_DOMAIN
NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_MIN_NRINGS NCCL_MIN_P2P_NCHANNELS NCCL_MNNVL_CLIQUE_ID
NCCL_MNNVL_ENABLE NCCL_MNNVL_UUID NCCL_MULTI_RANK_GPU_ENABLE NCCL_NCHANNELS_PER_NET_PEER NCCL_NET
NCCL_NETDEVS_POLICY NCCL_NET_DISABLE_INTRA NCCL_NET_FORCE_MERGE NCCL_NET_GDR_C2C NCCL_NET_GDR_LEVEL
NCCL_NET_GDR_READ NCCL_NET_MERGE_LEVEL NCCL_NET_PLUGIN NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS
NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVB_DISABLE NCCL_NVLS_CHUNKSIZE NCCL_NVLS_ENABLE
NCCL_NVLS_NCHANNELS NCCL_NVTX_DISABLE NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME
NCCL_P2P_DIRECT_DISABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_LL_THRESHOLD NCCL_P2P_NET_CHUNKSIZE
NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_PXN_LEVEL NCCL_P2P_READ_ENABLE
NCCL_PARAM_DUMP_ALL NCCL_PAT_ENABLE NCCL_PROFILER_PLUGIN NCCL_PROGRESS_APPENDOP_FREQ NCCL_PROTO
NCCL_PROXY_APPEND_BATCH_SIZE NCCL_PXN_C2C NCCL_PXN_DISABLE NCCL_RAS_ADDR NCCL_RAS_ENABLE
NCCL_RAS_TIMEOUT_FACTOR NCCL_RUNTIME_CONNECT NCCL_SET_CPU_STACK_SIZE NCCL_SET_STACK_SIZE
NCCL_SET_THREAD_NAME NCCL_SHM_DISABLE NCCL_SHM_LOCALITY NCCL_SHM_MEMCPY_MODE
NCCL_SHM_USE_CUDA_MEMCPY NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_SINGLE_RING_THRESHOLD
NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_SOCKET_RETRY_CNT
NCCL_SOCKET_RETRY_SLEEP_MSEC NCCL_THREAD_THRESHOLDS NCCL_TOPO_DUMP_FILE NCCL_TOPO_DUMP_FILE_RANK
NCCL_TOPO_FILE NCCL_TREE_THRESHOLD NCCL_TUNER_PLUGIN NCCL_UID_STAGGER_RATE
NCCL_UID_STAGGER_THRESHOLD NCCL_WARN_ENABLE_DEBUG_INFO NCCL_WIN_ENABLE NCCL_WIN_STRIDE
NCCL_WORK_ARGS_BYTES NCCL_WORK_FIFO_BYTES
"""
_NCCL = frozenset(_DOCUMENTED.split())

_AREA = "environment"
_ok = partial(Finding, _AREA, "ok")
_note = partial(Finding, _AREA, "note")
_problem = partial(Finding, _AREA, "problem")
_OURS = ("NCCL_", "HOSTNCCL_", "PYNCCL_")
# Variables of the tests and of the build of the test double.
_TEST_VARIABLES = re.compile(r"PYNCCL_(TEST_.*|DOUBLE|BENCH_.*)")
_SECRET = "_KEY"  # values are not shown
_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FILES = ("/etc/nccl.conf", "~/.nccl.conf")


def examine(
    environment: Mapping[str, str], facts: Sequence[Facts], files: Sequence[str] = _FILES
) -> Iterator[Finding]:
    """Describe the variables that are set, and report those that no library reads.

    Args:
        environment: the variables.
        facts: the facts about the providers: the parameters of hostnccl, and the path of
            libnccl.so.2.
        files: NCCL's configuration files.
    """
    described = {name: text for one in facts for name, text in one.parameters.items()}
    library = next((one.path for one in facts if one.provider == "cuda" and not one.error), "")
    known = {**dict.fromkeys(_NCCL, "a variable of NCCL"), **described, **PYNCCL}
    ours = sorted(name for name in environment if name.startswith(_OURS))
    for name in ours:
        yield _variable_finding(name, environment[name], known, bool(described), library)
    if not ours:
        yield _ok("no variable of NCCL, hostnccl or pynccl is set")
    if not _NCCL.isdisjoint(ours):
        yield _ok(f"NCCL's variables are described at {_DOCUMENTATION}")
    yield from _value_findings(environment, facts)
    yield from _rendezvous_findings(environment)
    for name in files:
        path = Path(name).expanduser()
        if path.is_file():
            yield _note(f"NCCL also reads {path}")


def _variable_finding(
    name: str, value: str, known: Mapping[str, str], hostnccl: bool, library: str
) -> Finding:
    shown = name if name.endswith(_SECRET) else f"{name}={value}"
    text, advice = "", ""
    level: Level = "ok"
    if name in _NCCL and library and not _names(library, name):
        text, level = "the NCCL that was found does not read it", "note"
    elif name in known:
        text = known[name]
    elif _TEST_VARIABLES.fullmatch(name):
        text = "used by pynccl's own tests"
    elif name in _OF_TORCH:
        text = f"torch's old name for TORCH_{name}; NCCL and pynccl do not read it"
        level, advice = "note", f"unset {name}"
    elif name.startswith("HOSTNCCL_") and not hostnccl:
        text, level = "a variable of hostnccl, which was not loaded", "note"
    elif name.startswith("NCCL_") and _names(library, name):
        text = f"undocumented, and known to {library}"
    else:
        reader = "NCCL" if name.startswith("NCCL_") else name.partition("_")[0].lower()
        text = f"unknown: {reader} does not read it"
        level, advice = "note", f"unset {name}"
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            level, advice = "problem", f"did you mean {close[0]} ({known[close[0]]})?"
    return Finding(_AREA, level, f"{shown} - {text}", advice)


def _names(library: str, name: str) -> bool:
    """Whether a library contains a text."""
    try:
        with (
            Path(library).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(name.encode() + b"\0") >= 0
    except (OSError, ValueError):  # the file is missing or empty
        return False


def _value_findings(environment: Mapping[str, str], facts: Sequence[Facts]) -> Iterator[Finding]:
    """Report unusable values."""
    provider = environment.get("PYNCCL_PROVIDER")
    if provider and provider not in PROVIDERS:
        yield _problem(
            f"PYNCCL_PROVIDER={provider} is not one of {', '.join(PROVIDERS)}",
            "unset it, or set it to one of them",
        )
    for one in facts:
        for text in one.wrong:
            yield _problem(text, "unset the variable or correct its value")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        hides = "which hides all GPUs" if visible.strip() in ("", "-1") else "the others are hidden"
        yield _note(f"CUDA_VISIBLE_DEVICES={visible}: {hides}")
    preload = environment.get("LD_PRELOAD", "")
    if "libnccl" in os.path.basename(preload) or "/libnccl" in preload:
        yield _note(f"LD_PRELOAD={preload}: every program of this shell uses this libnccl")


def _rendezvous_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report an incomplete set of the variables by which ranks find each other."""
    present = [name for name in _RENDEZVOUS if environment.get(name)]
    missing = [name for name in _RENDEZVOUS if not environment.get(name)]
    if present and missing:
        yield _note(
            f"{', '.join(present)} set, but not {', '.join(missing)}: init_process_group without "
            "arguments needs all four",
            "start the script with torchrun, or unset them",
        )
