"""Whether the cuda provider can be tested on this machine, and how ranks share one GPU."""

from __future__ import annotations

import functools
import os

import pytest

from pynccl import libraries, nccl, raw
from pynccl.errors import DriverError, LibraryNotFoundError
from tests.support.tier import FULL

_MOST_ON_ONE = 4  # processes that take turns on one GPU; more would exceed the time limit of a test
FLOAT8 = frozenset(("float8_e4m3fn", "float8_e5m2"))
_CTAS_ON_ONE = "4"  # per kernel if ranks share a GPU


@functools.cache
def count() -> int:
    """The number of GPUs."""
    return len(libraries.load("cuda").device_names())


@functools.cache
def missing() -> str:
    """The reason why GPU tests cannot run, or ""."""
    try:
        import torch  # first, so that pynccl uses torch's NCCL
    except ImportError:
        return "torch is not installed, which the GPU tests use"
    try:
        if not count():
            return "the CUDA driver sees no GPU"
    except (LibraryNotFoundError, DriverError) as error:
        return f"no GPU to test on: {error}"
    return "" if torch.cuda.is_available() else "this PyTorch has no CUDA"


def require_devices(number: int) -> None:
    """Skip the test on a machine with fewer GPUs."""
    if count() < number:
        pytest.skip(f"needs {number} GPUs, and this machine has {count()}")


def require(provider: str, *functions: str) -> raw.Library:
    """Return the provider's library, or skip the test if it lacks one of these NCCL functions.

    For tests whose other ranks would wait for the rank that calls the function.
    """
    library = libraries.load(provider)
    known = library.functions()
    loaded = ".".join(map(str, nccl.get_version(provider)))
    for name in functions:
        code, there = known[name]
        if not there:
            since = f"{code // 10000}.{code // 100 % 100}.{code % 100}"
            pytest.skip(f"{name} needs NCCL {since}; the loaded one is {loaded}")
    return library


def too_many(nranks: int, *, threads: bool) -> str:
    """The reason why this many ranks, as processes or threads, cannot run, or ""."""
    if nranks <= count():
        return ""
    if nranks > _MOST_ON_ONE * count():
        return f"{nranks} ranks are too many for {count()} GPU, which runs one process at a time"
    if threads and nccl.get_version("cuda") < (2, 30, 0):
        return "threads of one process share a GPU from NCCL 2.30 on"
    return ""


def most_cases(provider: str, nranks: int) -> int | None:
    """The number of similar cases to run, or None for all.

    Processes that share a GPU take turns of several milliseconds, and an operation between them
    takes several turns.
    """
    if provider == "host":
        return None
    if _is_short_double():
        return {1: 60, 2: 20}.get(nranks, 12)
    if nranks <= count():
        return 200
    return 50 if nranks == 2 else 25


def _is_short_double() -> bool:
    """Whether the GPUs are the double's in the short tier.

    Its results prove less than hostnccl's, and each rank takes as long as one that shares a GPU.
    """
    return "CUDA_DOUBLE_LIBRARIES" in os.environ and not FULL


def spare(provider: str, nranks: int) -> None:
    """Skip odd and large world sizes on the double, and 3 ranks on one GPU.

    For tests with several world sizes.
    """
    if provider == "cuda" and _is_short_double() and (nranks == 3 or nranks > _MOST_ON_ONE):
        pytest.skip("make test-all has these sizes on the double")
    if provider == "cuda" and count() < nranks == 3:
        pytest.skip("on one GPU there is time for 1, 2 and 4 ranks")


@functools.cache
def without(provider: str) -> frozenset[str]:
    """The dtypes that the provider does not support on this machine.

    NCCL supports 8-bit floats from 2.24 on, and reduces them from compute capability 9.0 on.
    """
    if provider == "host":
        return frozenset()
    import torch

    new = nccl.get_version("cuda") >= (2, 24, 0)
    capable = min(torch.cuda.get_device_capability(device) for device in range(count())) >= (9, 0)
    return frozenset() if new and capable else FLOAT8


def rejects(provider: str, nranks: int, dtype: str, op: str, count: int) -> bool:
    """Whether the provider rejects a reduction: NCCL cannot scale 8-bit floats for one rank."""
    scales = count > 0 and (op == "AVG" or op.startswith("PRE_MUL_SUM"))
    return provider == "cuda" and nranks == 1 and dtype in FLOAT8 and scales


def keep_busy(seconds: float, stream: int, device: int) -> None:
    """Enqueue a kernel of this duration on a stream."""
    if "CUDA_DOUBLE_LIBRARIES" in os.environ:
        from tests.doubles import library

        library.busy(seconds, stream, device)
        return
    import torch

    khz = getattr(torch.cuda.get_device_properties(device), "clock_rate", 1_500_000)
    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device)):
        torch.cuda._sleep(int(seconds * 1e3 * khz))


def environment(nranks: int, rank: int) -> dict[str, str]:
    """The environment variables for a rank's process if ranks share a GPU."""
    if nranks <= count():
        return {}
    # Kernels that wait for each other must be resident together.
    ctas = {} if "NCCL_MAX_CTAS" in os.environ else {"NCCL_MAX_CTAS": _CTAS_ON_ONE}
    if nccl.get_version("cuda") >= (2, 30, 0):
        return {**ctas, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # Older versions reject two ranks on one GPU of a host, so each rank gets its own host id, and
    # they connect by sockets. Connecting to a rank that has died is retried for a minute, and a
    # revocation does not end that: see docs/reliability.md.
    sockets = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_RETRY_CNT": "5"}
    return {**ctas, "NCCL_HOSTID": f"pynccl-{rank}", **sockets}
