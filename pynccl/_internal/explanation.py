"""nccl.explain() and Communicator.explain(): how NCCL or hostnccl runs a collective, and why."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pynccl import _C
from pynccl.errors import MissingFunctionError, from_result

if TYPE_CHECKING:
    from pynccl._C import Communicator
    from pynccl._internal.plugin import Choice

__all__ = [
    "Explanation",
    "blocks",
    "explain",
    "explain_collective",
    "explain_from_environment",
    "is_enabled",
    "unknown_interface",
]

_enabled = False
_FIRST_TABLE = 22200  # the NCCL version that first passes its costs to a tuner
_ON_HOST = {  # the collectives of which hostnccl chooses the path
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_reduce": "ncclAllReduce",
    "all_to_all": "ncclAlltoAll",
    "gather": "ncclGather",
    "scatter": "ncclScatter",
}
_WHOLE = ("broadcast", "reduce", "all_reduce")  # not divided into a block for each rank


@dataclass(frozen=True)
class Explanation:
    """How a collective runs: NCCL's estimates and its choice. ``str()`` formats them as a table.

    With hostnccl, the algorithm is its path, "staged" or "direct", the protocol is "", and the
    costs are the times between two ranks, extrapolated from its measurements of this machine. It
    measures nothing for reductions, nor for ranks that are threads of one process: these have no
    costs. The choice follows thresholds, which are not always where the costs are equal
    (docs/internals/base.md).

    Attributes:
        operation: such as "all_reduce".
        nbytes: the bytes of the larger buffer.
        nranks: the size of the communicator.
        version: the library and its version, such as "NCCL 2.32.3".
        costs: the estimate in microseconds for each algorithm and protocol that can be used.
        algorithm, protocol: the choice: with NCCL the least of the costs, unless a rule forced it.
        channels: the channels of the last such collective that ran, or those of the rule that
            forced the choice. None if unknown: NCCL decides it after the choice, and tells a tuner
            from NCCL 2.30 on.
        chunk: the chunk size in bytes, as channels. With hostnccl, the bytes of a block that a
            round of the staged path moves.
        registered: whether NCCL can use the buffers of the last such collective that ran as
            registered ones. None if unknown.
        rule: the number of the rule of the tuning file that forced the choice, from 1. None: none
            did. 0: a rule matches, but NCCL cannot use its algorithm and protocol here.
    """

    operation: str
    nbytes: int
    nranks: int
    version: str
    costs: dict[tuple[str, str], float]
    algorithm: str
    protocol: str
    channels: int | None
    chunk: int | None
    registered: bool | None
    rule: int | None

    def __str__(self) -> str:
        lines = [
            f"{self.operation} of {self.nbytes} bytes, {self.nranks} ranks, {self.version}: "
            f"{self.algorithm} {self.protocol}".rstrip()
            + self._forced()
        ]
        if self.channels is not None:
            lines[0] += f", {self.channels} channels"
        if self.rounds is not None:
            lines[0] += f", {self.rounds} rounds"
        if not self.costs:
            return lines[0]
        protocols = sorted({protocol for _, protocol in self.costs})
        names = "".join(f"{name:>12}" for name in protocols)
        lines.append(f"{'microseconds':14}{names}".rstrip())
        for algorithm in dict.fromkeys(algorithm for algorithm, _ in self.costs):
            cells = [self.costs.get((algorithm, protocol)) for protocol in protocols]
            texts = ["-" if cell is None else f"{cell:.1f}" for cell in cells]
            lines.append(f"{algorithm:14}" + "".join(f"{text:>12}" for text in texts))
        return "\n".join(lines)

    @property
    def rounds(self) -> int | None:
        """With hostnccl, the rounds of the staged path. Otherwise None."""
        if self.protocol or self.chunk is None:
            return None
        return -(-self.nbytes // blocks(self.operation, self.nranks) // self.chunk)

    def _forced(self) -> str:
        if self.rule is None:
            return ""
        if self.rule == 0:
            return " (NCCL cannot use what the tuning file asks for)"
        return f" (forced by rule {self.rule})"


def blocks(operation: str, nranks: int) -> int:
    """The number of blocks in the larger buffer of an operation."""
    return 1 if operation in _WHOLE else nranks


def explain(tuning: str | os.PathLike[str] | None = None) -> None:
    """Have NCCL load pynccl's plugin, which :meth:`Communicator.explain` requires with NCCL.

    Call it before the first communicator of the process is created: NCCL looks for a plugin once.
    It sets NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN for this process and its children. With the
    profiler, :func:`trace` adds the algorithm, protocol and channels of each operation, the times
    of its channels and what its proxies waited for; outside of traces it is off.
    ``PYNCCL_EXPLAIN=1`` has the same effect when pynccl.nccl is imported, and so has
    ``PYNCCL_TUNING``, the path of a tuning file.

    With any tuner plugin, NCCL no longer prefers NVLS for registered buffers under the CTA policy
    "efficiency". Its other choices are the same, unless a tuning file changes them.

    Args:
        tuning: a JSON file with rules that force choices, from NCCL 2.22 on
            (docs/howto/why-is-my-all-reduce-slow.md). None: no choice is forced. hostnccl reads
            none.

    Raises:
        ValueError: NCCL_TUNER_PLUGIN or NCCL_PROFILER_PLUGIN names another plugin, or the file is
            not a tuning file.
        OSError: the file cannot be read.
    """
    from pynccl._internal import plugin  # deferred: slow to import

    rules = [] if tuning is None else plugin.read_rules(tuning)
    plugin.enable()
    plugin.set_rules(rules)
    global _enabled  # noqa: PLW0603 - one plugin in a process
    _enabled = True


def is_enabled() -> bool:
    """Whether this process has called explain()."""
    return _enabled


def explain_from_environment() -> None:
    """Do as PYNCCL_EXPLAIN and PYNCCL_TUNING say."""
    wanted = os.environ.get("PYNCCL_EXPLAIN", "0")
    if wanted not in ("0", "1", ""):
        raise ValueError(f"PYNCCL_EXPLAIN: {wanted!r} is neither 0 nor 1")
    tuning = os.environ.get("PYNCCL_TUNING")
    if wanted == "1" or tuning:
        explain(tuning or None)


def explain_collective(comm: Communicator, operation: str, nbytes: int) -> Explanation:
    """Return the algorithm and protocol that NCCL chooses for a collective, and its estimates.

    NCCL computes them as for :func:`simulate`: nothing runs. All ranks of the communicator must
    call it with the same arguments. Requires :func:`explain`, NCCL 2.22 and more than one rank.
    Collectives on symmetric windows and those of the copy engines do not ask a tuner; their
    choices are not known.

    hostnccl requires only more than one rank. Its answer is for buffers outside of windows.

    Args:
        comm: the communicator.
        operation: ``"all_reduce"``, ``"broadcast"``, ``"reduce"``, ``"all_gather"`` or
            ``"reduce_scatter"``; with hostnccl also ``"all_to_all"``, ``"gather"`` or
            ``"scatter"``.
        nbytes: the bytes of the larger buffer: of all ranks, if it has a block for each.

    Returns:
        An Explanation.

    Raises:
        ValueError: there is no such operation, nbytes is not above 0 or not a multiple of the
            number of ranks if each has a block, or the communicator has one rank.
        MissingFunctionError: NCCL has not loaded the plugin, or is too old.
        NcclError: NCCL failed.
    """
    from pynccl._internal import plugin  # deferred: slow to import

    on_host = comm.library.memory == "host"
    operations = tuple(_ON_HOST) if on_host else plugin.FUNCTIONS
    if operation not in operations:
        raise ValueError(f"operation: {operation!r} is not one of {', '.join(operations)}")
    unit = blocks(operation, comm.nranks)
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1 or nbytes % unit:
        raise ValueError(f"nbytes: {nbytes!r} is not a positive multiple of {unit}")
    if comm.nranks < 2:
        raise ValueError("explain: in a communicator of one rank, NCCL copies and chooses nothing")
    if on_host:
        return _explanation_on_host(comm, operation, nbytes, nbytes // unit)
    if comm.library.version < _FIRST_TABLE:
        raise MissingFunctionError(
            f"explain: NCCL {_C.version_text(comm.library.version)} does not pass its costs to a "
            "plugin; NCCL 2.22 was the first to do so"
        )
    before = plugin.choices()[-1:]
    root = {"root": 0} if operation in ("broadcast", "reduce") else {}
    with _C.simulate():
        # In place. The buffer is not accessed, and the stream is not used.
        getattr(comm, operation)(2**40, count=nbytes, dtype="uint8", stream=0, **root)
    found = [
        one
        for one in plugin.choices(before[0].number if before else 0)
        if one.nbytes == nbytes and one.function == plugin.FUNCTIONS.index(operation)
    ]
    # NCCL asks in this thread, unless it prepares the ranks of a process in threads of its own.
    found.sort(key=lambda one: one.thread != threading.get_native_id())
    if not found:
        raise _not_asked(comm.library)
    if found[0].algorithms == 0 or found[0].algorithm < 0:
        raise MissingFunctionError("explain: NCCL passed no costs to the plugin")
    return _explanation(comm, found[0])


def _not_asked(library: _C.Library) -> MissingFunctionError:
    if text := unknown_interface(library, "ncclTunerPlugin"):
        return MissingFunctionError(f"explain: {text}")
    return MissingFunctionError(
        f"explain: NCCL {_C.version_text(library.version)} has not asked pynccl's plugin. Call "
        "nccl.explain(), or set PYNCCL_EXPLAIN=1, before the first communicator of the process is "
        "created"
    )


def unknown_interface(library: _C.Library, symbol: str) -> str | None:
    """What to say if the plugin has no version of an interface that a library looks for."""
    from pynccl._internal import plugin

    ours, theirs = (plugin.interfaces(one, symbol) for one in (plugin.path(), library.path))
    if not set(ours).isdisjoint(theirs):
        return None
    names = ", ".join(f"{symbol}_v{number}" for number in theirs) or f"no {symbol}"
    return (
        f"NCCL {_C.version_text(library.version)} looks for {names}, and pynccl's plugin has "
        f"versions {ours[0]} to {ours[-1]}"
    )


def _explanation_on_host(
    comm: Communicator, operation: str, nbytes: int, block: int
) -> Explanation:
    function = getattr(ctypes.CDLL(comm.library.path), "hostCommExplain", None)
    if function is None:
        raise MissingFunctionError(f"explain: {comm.library.path} is not pynccl's hostnccl")
    direct, chunk, ns = ctypes.c_int(), ctypes.c_size_t(), (ctypes.c_double * 2)()
    result = function(
        ctypes.c_void_p(comm.handle),
        _ON_HOST[operation].encode(),
        ctypes.c_size_t(block),
        ctypes.byref(direct),
        ctypes.byref(chunk),
        ns,
    )
    if result != 0:
        text = comm.library.ncclGetLastError(comm.handle)
        raise from_result(f"explain: {text}", result, "hostCommExplain", comm.rank)
    times = zip(("staged", "direct"), ns, strict=True)
    return Explanation(
        operation,
        nbytes,
        comm.nranks,
        f"hostnccl {_C.version_text(comm.library.version)}",
        {(path, ""): time / 1000 for path, time in times if time},
        "direct" if direct.value else "staged",
        "",
        None,
        None if direct.value else chunk.value,
        None,
        None,
    )


def _explanation(comm: Communicator, chosen: Choice) -> Explanation:
    from pynccl._internal import plugin

    same = [
        one
        for one in plugin.choices()
        if (one.context, one.function, one.nbytes)
        == (chosen.context, chosen.function, chosen.nbytes)
    ]
    issued = next((one for one in reversed(same) if one.chunk), None)
    known = issued or chosen
    algorithms = [_name(plugin.ALGORITHMS, number) for number in range(chosen.algorithms)]
    protocols = [_name(plugin.PROTOCOLS, number) for number in range(chosen.protocols)]
    costs = {
        (algorithm, protocol): chosen.costs[a][p]
        for a, algorithm in enumerate(algorithms[: len(chosen.costs)])
        for p, protocol in enumerate(protocols[: len(chosen.costs[a])])
        if chosen.costs[a][p] >= 0
    }
    return Explanation(
        plugin.FUNCTIONS[chosen.function],
        chosen.nbytes,
        comm.nranks,
        f"NCCL {_C.version_text(comm.library.version)}",
        costs,
        _name(plugin.ALGORITHMS, chosen.algorithm),
        _name(plugin.PROTOCOLS, chosen.protocol),
        known.channels or None,
        known.chunk or None,
        None if issued is None or issued.registered < 0 else bool(issued.registered),
        None if chosen.rule == 0 else max(chosen.rule, 0),
    )


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"#{number}"
