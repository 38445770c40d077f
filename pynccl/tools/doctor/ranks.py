"""The two-rank check: processes that create a communicator over a provider and exchange data."""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pynccl import _C, nccl
from pynccl.testing import Launcher, LaunchError, Outcome, Rank
from pynccl.tools.doctor.finding import Finding
from pynccl.tools.doctor.library import Facts, describe

__all__ = ["Program", "check", "exchange", "find"]

_RANKS = 2
_TO_START = 4  # times the limit: importing Python packages takes long, torch above all
_COUNT = 2**18  # float32 numbers: 1 MiB
_MOST_CTAS = "4"  # per rank if ranks share a GPU, so that all kernels fit
_NEVER = " before starting"
# Advice for fragments of an error text.
_ADVICE = {
    "SIGBUS": "its shared memory is full: check /dev/shm and the memory limit of the container",
    "SIGKILL": "the container's memory limit or the kernel killed it: check dmesg",
    "No space left": "make /dev/shm larger (docker run --shm-size=1g), or set NCCL_SHM_DISABLE=1",
    "driver version is insufficient": "update the NVIDIA driver, or install the NCCL of an older "
    "CUDA (the extra cuda12)",
    "HOSTNCCL_": "unset the variable or correct its value",
}

Program = Callable[[Rank], float]  # returns the seconds of one all_reduce


@dataclass
class _Result:
    """How the ranks ended.

    Attributes:
        outcomes: one per rank; empty if none was started.
        steps: the steps that each rank reported, in order.
    """

    outcomes: list[Outcome]
    steps: dict[int, list[str]]


def find(provider: str, timeout: float) -> Facts:
    """Run describe() in a child process, which is ended after this many seconds."""
    try:
        with Launcher() as launcher:
            facts: Facts = launcher.launch(
                1, _describe, (provider,), unique_ids=0, timeout=timeout, fresh=True
            )[0]
            return facts
    except LaunchError as error:
        outcome = error.outcomes[0]
        how = outcome.died or f"{type(outcome.error).__name__}: {outcome.error}"
        return Facts(provider, error=f"a process that loads the libraries failed: {how}")


def _describe(_: Rank, provider: str) -> Facts:
    return describe(provider)


def check(facts: Facts, timeout: float, program: Program | None = None) -> Iterator[Finding]:
    """Run two ranks over a usable provider and report how they ended.

    Args:
        facts: the facts about the provider.
        timeout: seconds without progress after which the ranks are ended.
        program: the function that each rank runs; None is exchange().
    """
    area = f"{_RANKS} ranks over {facts.provider}"
    shared = facts.provider == "cuda" and len(facts.devices) < _RANKS
    began = time.monotonic()
    result = _run(facts, timeout, program or exchange, _environments(facts) if shared else None)
    if not all(outcome.ok for outcome in result.outcomes):
        yield from _failures(area, facts, result, timeout)
        return
    seconds = time.monotonic() - began
    on = " that share the GPU" if shared else ""
    yield Finding(
        area,
        "ok",
        f"all_reduce, send and recv of 1 MiB are correct between {_RANKS} processes{on} "
        f"({seconds:.1f} s in total; one all_reduce {result.outcomes[0].value * 1e3:.2g} ms)",
    )


def _environments(facts: Facts) -> list[Mapping[str, str]]:
    """The environment variables of each rank that let the ranks share one GPU."""
    common = {} if "NCCL_MAX_CTAS" in os.environ else {"NCCL_MAX_CTAS": _MOST_CTAS}
    if facts.version >= 23000:
        return [{**common, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}] * _RANKS
    # An older NCCL refuses two ranks on one GPU of one machine.
    apart = {**common, "NCCL_SOCKET_IFNAME": "lo"}
    return [{**apart, "NCCL_HOSTID": f"pynccl-doctor-{rank}"} for rank in range(_RANKS)]


def _run(
    facts: Facts, timeout: float, program: Program, env: Sequence[Mapping[str, str]] | None
) -> _Result:
    steps: dict[int, list[str]] = {rank: [] for rank in range(_RANKS)}
    with Launcher() as launcher:
        try:
            run = launcher.start(
                _RANKS,
                program,
                provider=facts.provider,
                timeout=_TO_START * timeout,
                grace=1.0,
                env=env,
            )
        except LaunchError as error:  # the unique id
            return _Result(error.outcomes, steps)
        with run:
            with contextlib.suppress(LaunchError):
                for rank, step in enumerate(run.gather_reports()):
                    steps[rank].append(step)
                for rank, step in run.reports(silence=timeout):
                    steps[rank].append(step)
            outcomes = run.outcomes()
            with contextlib.suppress(LaunchError):
                for rank, step in run.reports():  # reports after the first failure
                    steps[rank].append(step)
    return _Result(outcomes, steps)


def exchange(rank: Rank) -> float:
    """Run on each rank: exchange data, reporting each step.

    Returns:
        The seconds of one all_reduce.

    Raises:
        RuntimeError: a result is wrong.
    """
    rank.report("starting")
    size, own = rank.world_size, rank.rank
    with rank.communicator() as comm:
        rank.report("creating a communicator")
        stream = nccl.Stream(rank.provider, device=rank.device)
        sent, got = comm.mem_alloc(_COUNT, "float32"), comm.mem_alloc(_COUNT, "float32")
        transfer = _Transfer(comm.library, stream)
        seconds = 0.0
        for _ in range(2):  # the first one establishes the connections
            transfer.write(sent, own + 1.0)
            began = time.monotonic()
            comm.all_reduce(sent, out=got, stream=stream)
            stream.synchronize()
            seconds = time.monotonic() - began
            transfer.compare("all_reduce", got, size * (size + 1) / 2)
        rank.report("a correct all_reduce")
        transfer.write(sent, own + 10.0)
        with nccl.group():
            comm.send(sent, (own + 1) % size, stream=stream)
            comm.recv(got, (own - 1) % size, stream=stream)
        transfer.compare("recv", got, (own - 1) % size + 10.0)
        rank.report("correct messages")
        for one in (sent, got):
            one.close()
    return seconds


class _Transfer:
    """Copies between a library's memory and Python, using the library's own driver."""

    def __init__(self, library: _C.Library, stream: nccl.Stream) -> None:
        prefix = "host" if library.memory == "host" else "cu"  # hostnccl is its own driver
        self._copy = ctypes.CDLL(library.driver_path)[f"{prefix}MemcpyAsync"]
        self._copy.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        self._stream = stream

    def _run(self, to: int, source: int, nbytes: int) -> None:
        if result := self._copy(to, source, nbytes, self._stream.handle):
            raise RuntimeError(f"a copy of {nbytes} bytes failed: CUresult {result}")
        self._stream.synchronize()

    def write(self, buffer: nccl.Buffer, value: float) -> None:
        content = array.array("f", [value]) * _COUNT
        self._run(buffer.ptr, content.buffer_info()[0], buffer.nbytes)

    def compare(self, what: str, buffer: nccl.Buffer, value: float) -> None:
        """Compare the contents after all enqueued work."""
        found = array.array("f", bytes(buffer.nbytes))
        self._run(found.buffer_info()[0], buffer.ptr, buffer.nbytes)
        if found != array.array("f", [value]) * _COUNT:
            wrong = sum(one != value for one in found)
            raise RuntimeError(
                f"{what} returned wrong data: {wrong} of {_COUNT} elements are not {value:g}"
            )


def _failures(area: str, facts: Facts, result: _Result, timeout: float) -> Iterator[Finding]:
    """Report the ranks that failed; those that failed because of another rank come last."""
    failed = [outcome for outcome in result.outcomes if not outcome.ok]
    alike: dict[str, list[Outcome]] = {}
    for outcome in [one for one in failed if not _is_caused_by_another(one)] or failed:
        steps = result.steps.get(outcome.rank, [])
        after = f" after {steps[-1]}" if steps else _NEVER
        text = _text(outcome, after, timeout)
        alike.setdefault(re.sub(r"rank \d+", "a rank", text), []).append(outcome)
    for text, outcomes in alike.items():
        numbers = " and ".join(str(one.rank) for one in outcomes)
        ranks = f"rank{'s' if len(outcomes) > 1 else ''} {numbers}"
        steps = result.steps.get(outcomes[0].rank, [])
        yield Finding(area, "problem", f"{ranks} {text}", _advice(facts, outcomes[0], steps))


def _is_caused_by_another(outcome: Outcome) -> bool:
    return isinstance(outcome.error, nccl.NcclRemoteError) or "of a failure" in outcome.died


def _text(outcome: Outcome, after: str, timeout: float) -> str:
    if outcome.error is not None:
        return f"failed{after}: {type(outcome.error).__name__}: {outcome.error}"
    if not outcome.died.startswith(("killed", "exited")):
        where = _place(outcome.trace)
        limit = timeout if after != _NEVER else _TO_START * timeout
        return f"made no progress for {limit:g} s{after} and was ended{where}"
    return f"died{after}: its process was {outcome.died}"


def _place(trace: str) -> str:
    """The Python line that a rank was executing: the innermost frame of its main thread."""
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\w+)', trace.rpartition("most recent")[2])
    if not frames:
        return ""
    path, line, function = frames[0]
    return f", in {function} ({os.path.basename(path)}:{line})"


def _advice(facts: Facts, outcome: Outcome, steps: list[str]) -> str:
    text = f"{outcome.error} {outcome.died}"
    for fault, advice in _ADVICE.items():
        if fault in text:
            return advice
    if facts.provider == "host":
        return "a bug in hostnccl, unless a HOSTNCCL or PYNCCL variable is wrong: please report it"
    if not outcome.died:
        return "NCCL_DEBUG=INFO pynccl doctor prints NCCL's log"
    if not steps:
        return "the process did not start in time: --timeout 60 shows whether it starts at all"
    if not steps[1:]:  # no communicator yet
        return (
            "the ranks did not find each other, or the GPU is busy: try NCCL_SOCKET_IFNAME=lo; "
            "NCCL_DEBUG=INFO shows what NCCL waits for"
        )
    return (
        "try NCCL_P2P_DISABLE=1, to see whether P2P is at fault (ACS, a virtual machine); "
        "NCCL_DEBUG=INFO shows what NCCL waits for"
    )
