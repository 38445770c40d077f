"""Machine limits that affect ranks: shared memory, process limits, CPUs, ptrace."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pynccl.tools.doctor.finding import Finding
from pynccl.tools.text import size_text

__all__ = ["examine", "has_nvidia_device", "ptrace_scope"]

_ok = partial(Finding, "machine", "ok")
_note = partial(Finding, "machine", "note")
_problem = partial(Finding, "machine", "problem")
_MIB = 2**20
_ENOUGH_SHARED = 512 * _MIB  # NCCL takes up to some ten MiB for each pair of ranks, torch more
_LEAST_SHARED = 32 * _MIB
_ENOUGH_FILES = 1024
_ENOUGH_LOCKED = 64 * _MIB
_SCOPES = {
    0: "processes of one user may read each other's memory",
    1: "a process may read only the memory of its descendants",
    2: "only processes with CAP_SYS_PTRACE may read another's memory",
    3: "no process may read another's memory",
}


def ptrace_scope() -> int | None:
    """kernel.yama.ptrace_scope; None if the kernel has no such setting."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def has_nvidia_device() -> bool:
    """Whether there is an NVIDIA GPU, regardless of whether its driver libraries are installed."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/proc/driver/nvidia/version").exists()


def examine() -> Iterator[Finding]:
    """Examine the machine."""
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2:
        yield _note(
            "this process may use one CPU: ranks take turns on it",
            "start the container or the job with a CPU for each rank",
        )
    else:
        yield _ok(f"{cpus} CPUs")
    yield _shared_memory()
    yield _open_files()
    yield _locked_memory()
    if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        yield _note(
            f"the address space is limited to {size_text(limit)} (ulimit -v); CUDA reserves more "
            "than the memory of the machine",
            "ulimit -v unlimited",
        )
    yield _ptrace(ptrace_scope())


def _shared_memory() -> Finding:
    use = "NCCL's ranks on one machine and torch's DataLoader use it; hostnccl does not"
    advice = "in a container: docker run --shm-size=1g, or --ipc=host"
    try:
        found = shutil.disk_usage("/dev/shm")
    except OSError:
        return _note(f"there is no /dev/shm; {use}", advice)
    text = f"/dev/shm has {size_text(found.total)}, of which {size_text(found.free)} are free"
    if found.free < _LEAST_SHARED:
        if found.total >= _ENOUGH_SHARED:
            advice = "remove files that other programs left in /dev/shm (ls -l /dev/shm)"
        return _problem(f"{text}: too little for NCCL; {use}", advice)
    if found.total < _ENOUGH_SHARED:
        return _note(f"{text}: little for many ranks; {use}", advice)
    return _ok(text)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may open {_count(soft)} files (ulimit -n)"
    if soft != resource.RLIM_INFINITY and soft < _ENOUGH_FILES:
        return _note(f"{text}; a rank needs some for each peer", f"ulimit -n {_count(hard)}")
    return _ok(text)


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    text = f"a process may lock {'unlimited' if unlimited else size_text(soft)} memory (ulimit -l)"
    if not unlimited and any(Path("/sys/class/infiniband").glob("*")):
        return _note(
            f"{text}; there is InfiniBand or RoCE, which NCCL registers its buffers with",
            "ulimit -l unlimited; in a container: docker run --ulimit memlock=-1",
        )
    if not unlimited and soft < _ENOUGH_LOCKED:
        text += ", which only networks with RDMA and pinned host memory need"
    return _ok(text)


def _ptrace(scope: int | None) -> Finding:
    if scope is None:
        return _ok("the kernel does not restrict ptrace (no yama)")
    text = f"kernel.yama.ptrace_scope is {scope}: {_SCOPES.get(scope, 'an unknown value')}"
    if scope == 0:
        return _ok(text)
    return _note(
        f"{text}, so hostnccl copies large messages twice",
        "sysctl kernel.yama.ptrace_scope=0, if you administer the machine",
    )


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
