"""Comparison of algorithms: which is fastest, for each size and number of ranks."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from pynccl import nccl
from pynccl._internal.explanation import blocks
from pynccl._internal.typed_json import FieldError, build
from pynccl.errors import NcclError
from pynccl.testing import LaunchError
from pynccl.tools.lab import world
from pynccl.tools.lab.operations import BufferKind, Communication
from pynccl.tools.lab.row import Timing
from pynccl.tools.lab.steps import maximum, new_stream, timed
from pynccl.tools.lab.variants import FUNCTIONS, Variant, environment
from pynccl.tools.text import size_text, table
from pynccl.tools.trace.bandwidth import bandwidth

__all__ = [
    "Measured",
    "compare",
    "measure",
    "read_json",
    "tuning",
    "winner",
    "write_json",
    "write_table",
]

_FASTER = 1.05  # than NCCL's choice, for a rule of a tuning file
_LEAST_SAMPLE = 1e-3  # seconds; shorter operations are repeated in a sample
_MOST_REPEATED = 200
_WARMUP = 3


@dataclass(frozen=True)
class Measured:
    """The time of one collective of one size, run with one variant.

    Attributes:
        collective: the collective.
        nranks: the number of ranks.
        nbytes: size of the larger buffer in bytes.
        variant: the algorithm, protocol and number of CTAs.
        timing: seconds of one call; each sample is the maximum over the ranks. None if it could not
            run.
        chosen: for the default variant, NCCL's choice, if known.
        error: why it could not run.
    """

    collective: str
    nranks: int
    nbytes: int
    variant: Variant
    timing: Timing | None
    chosen: str | None = None
    error: str = ""

    @property
    def busbw(self) -> float:
        """nccl-tests' bus bandwidth in GB/s (1e9 bytes); 0.0 if it could not run."""
        if self.timing is None:
            return 0.0
        return bandwidth(self.collective, self.nbytes, self.timing.median, self.nranks).busbw


def measure(
    comm: nccl.Communicator,
    collective: str,
    sizes: Sequence[int],
    variants: Sequence[Variant],
    repeats: int = 15,
) -> list[Measured]:
    """Time variants of a collective in this world; all ranks call it.

    The variants take turns, round by round, so that they all run under the same conditions. A
    variant sets hostnccl's algorithm and the number of CTAs. Everything else that libnccl runs is
    decided by the environment of the process.

    Args:
        comm: the communicator.
        collective: the collective.
        sizes: in bytes.
        variants: the variants.
        repeats: number of samples for each variant, after 3 warm-up rounds.

    Returns:
        A Measured for each size and variant.

    Raises:
        ValueError: an argument is invalid.
    """
    measured = []
    stream = new_stream(comm)
    asks = comm.provider == "host" and comm.nranks > 1 and collective != "send_recv"
    chosen = _chosen(comm, collective, sizes) if asks else {}
    for nbytes in sizes:
        timers: dict[Variant, _Timer] = {}
        errors: dict[Variant, str] = {}
        for variant in variants:
            try:
                timers[variant] = _Timer(comm, stream, collective, nbytes, variant)
                timers[variant].prepare()
            except (NcclError, nccl.MissingFunctionError) as error:
                errors[variant] = str(error)
                if variant in timers:
                    timers.pop(variant).close()
        samples: dict[Variant, list[float]] = {variant: [] for variant in timers}
        for _ in range(repeats):
            for variant, timer in timers.items():
                samples[variant].append(timer.sample())
        for timer in timers.values():
            timer.close()
        for variant in variants:
            timing = Timing(tuple(samples[variant])) if variant in samples else None
            choice = chosen.get(nbytes) if variant == Variant() else None
            reason = errors.get(variant, "")
            measured.append(
                Measured(collective, comm.nranks, nbytes, variant, timing, choice, reason)
            )
    return measured


class _Timer:
    """Times one variant at one size."""

    def __init__(
        self,
        comm: nccl.Communicator,
        stream: nccl.Stream,
        collective: str,
        nbytes: int,
        variant: Variant,
    ) -> None:
        self._comm = comm
        self._own: nccl.Communicator | None = None
        buffer: BufferKind = "window" if variant.algorithm == "window" else "plain"
        config = None
        if comm.provider == "host":
            if variant.algorithm != "default":
                path = "direct" if variant.algorithm == "window" else variant.algorithm
                config = nccl.CollConfig(algorithm=path)
        elif variant.ctas != "default":
            ctas = int(variant.ctas)
            self._own = comm.split(0, comm.rank, config=nccl.Config(min_ctas=ctas, max_ctas=ctas))
        self._stream = stream
        used = self._own or comm
        self._call = Communication(used, collective, nbytes, buffer=buffer, config=config)
        self._times = 1

    def prepare(self) -> None:
        """Warm up, and determine how often a sample repeats the call."""
        for _ in range(_WARMUP):
            self.sample()
        once = statistics.median(self.sample() for _ in range(3))
        self._times = max(1, min(_MOST_REPEATED, round(_LEAST_SAMPLE / max(once, 1e-7))))

    def sample(self) -> float:
        """Seconds of one call, the maximum over the ranks."""
        seconds = timed(self._comm, self._stream, self._call, self._times) / self._times
        return maximum(self._comm, self._stream, [seconds])[0]

    def close(self) -> None:
        self._call.close()
        if self._own is not None:
            self._own.close()


def compare(
    provider: str,
    collective: str,
    sizes: Sequence[int],
    variants: Sequence[Variant],
    ranks: Sequence[int],
    *,
    repeats: int = 15,
    progress: Callable[[int, int, str], object] | None = None,
) -> list[Measured]:
    """Launch worlds and time variants of a collective in them.

    With hostnccl, all variants run in one world per number of ranks and take turns. With libnccl,
    each algorithm and protocol runs in its own processes, because NCCL reads its variables once.

    Args:
        provider: "host" or "cuda".
        collective: the collective.
        sizes: in bytes.
        variants: the variants.
        ranks: the numbers of ranks.
        repeats: number of samples for each variant.
        progress: called before each launch, and after the last, with the number of completed
            launches, the total number of launches, and a description.

    Returns:
        A Measured for each number of ranks, variant and size; with the error for a variant whose
        world failed.

    Raises:
        LaunchError: the world of the default variant failed.
        ValueError: an argument is invalid.
    """
    worlds = _worlds(provider, collective, variants)
    done, count = 0, len(ranks) * len(worlds)
    measured: list[Measured] = []
    for nranks in ranks:
        for env, world_variants in worlds:
            if progress is not None:
                progress(done, count, f"{nranks} ranks, {', '.join(map(str, world_variants))}")
            args = (collective, list(sizes), world_variants, repeats)
            try:
                found = world.run(nranks, measure, args, provider, env) or []
            except LaunchError as error:
                if Variant() in world_variants:
                    raise
                reason = str(error).strip().splitlines()[-1]
                found = [
                    Measured(collective, nranks, nbytes, variant, None, error=reason)
                    for variant in world_variants
                    for nbytes in sizes
                ]
            measured += found
            done += 1
        if provider == "cuda" and collective in FUNCTIONS:
            chosen = _choices(collective, sizes, nranks)
            measured = [
                replace(entry, chosen=chosen.get(entry.nbytes))
                if (entry.nranks, entry.variant) == (nranks, Variant())
                else entry
                for entry in measured
            ]
    if progress is not None:
        progress(count, count, "")
    return measured


def _worlds(
    provider: str, collective: str, variants: Sequence[Variant]
) -> list[tuple[dict[str, str], list[Variant]]]:
    """The environments to run in, with the variants of each."""
    if provider == "host":
        return [({}, list(variants))]
    version = nccl.get_version("cuda")
    grouped: dict[tuple[str, str], list[Variant]] = {}
    for variant in variants:
        grouped.setdefault((variant.algorithm, variant.protocol), []).append(variant)
    return [
        (environment(world_variants[0], collective, version), world_variants)
        for world_variants in grouped.values()
    ]


def _choices(collective: str, sizes: Sequence[int], nranks: int) -> dict[int, str]:
    """NCCL's choice by size; empty if NCCL cannot explain it."""
    try:
        env = {"PYNCCL_EXPLAIN": "1"}
        return world.run(nranks, _chosen, (collective, list(sizes)), "cuda", env) or {}
    except LaunchError:
        return {}


def _chosen(comm: nccl.Communicator, collective: str, sizes: Sequence[int]) -> dict[int, str]:
    unit = blocks(collective, comm.nranks)
    chosen = {}
    for nbytes in sizes:
        if nbytes < unit:  # Communication rejects it, with the reason
            continue
        found = comm.explain(collective, nbytes // unit * unit)
        chosen[nbytes] = f"{found.algorithm} {found.protocol}".strip().lower()
    return chosen


def read_json(path: Path) -> list[Measured]:
    """Read a file of write_json().

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a file.
    """
    try:
        found = [build(Measured, one) for one in json.loads(path.read_bytes())]
        if any(entry.timing is not None and not entry.timing.samples for entry in found):
            raise FieldError("samples: there are none")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not a file of pynccl lab sweep --json: {error}") from None
    return found


def winner(measured: Sequence[Measured], nranks: int, nbytes: int) -> Measured | None:
    """The fastest variant other than the default for a size; None if only the default ran."""
    entries = [
        entry
        for entry in measured
        if (entry.nranks, entry.nbytes) == (nranks, nbytes)
        and entry.timing is not None
        and entry.variant != Variant()
    ]
    return min(entries, key=_median, default=None)


def _median(entry: Measured) -> float:
    return entry.timing.median if entry.timing is not None else float("inf")


def write_table(measured: Sequence[Measured]) -> str:
    """Format microseconds per call by size and variant, with the winner and NCCL's own choice."""
    variants = list(dict.fromkeys(entry.variant for entry in measured))
    cells = {(entry.nranks, entry.nbytes, entry.variant): entry for entry in measured}
    header = ["ranks", "size", *map(str, variants), "NCCL chose", "busbw GB/s", "winner"]
    lines = []
    for nranks, nbytes in dict.fromkeys((entry.nranks, entry.nbytes) for entry in measured):
        best = winner(measured, nranks, nbytes)
        row_entries = [cells.get((nranks, nbytes, variant)) for variant in variants]
        default = cells.get((nranks, nbytes, Variant()))
        fastest = best or default
        lines.append(
            [
                str(nranks),
                size_text(nbytes),
                *(
                    f"{entry.timing.median * 1e6:.1f}" if entry and entry.timing else "-"
                    for entry in row_entries
                ),
                (default.chosen if default else None) or "?",
                f"{fastest.busbw:.2f}" if fastest else "-",
                _winner_text(best, default),
            ]
        )
    text = table(header, lines, left=(len(header) - 1,))
    failed = {str(entry.variant): entry.error for entry in measured if entry.error}
    return "\n".join(
        [text, *(f"{variant} did not run: {error}" for variant, error in failed.items())]
    )


def _winner_text(best: Measured | None, default: Measured | None) -> str:
    if best is None:
        return "-"
    text = str(best.variant)
    if default is not None and default.timing is not None:
        text += f" ({_median(default) / _median(best):.2f} times as fast as the default)"
    return text


def write_json(path: Path, measured: Sequence[Measured]) -> None:
    """Write all entries with their samples in seconds."""
    path.write_text(json.dumps([asdict(entry) for entry in measured], indent=1) + "\n")


def tuning(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the rules of a tuning file that force the winners.

    There is a rule if a variant with an algorithm, a protocol and the default number of CTAs is at
    least 5 % faster than NCCL's choice. It applies up to halfway, on a logarithmic scale, to the
    next measured size, and not beyond the measured sizes.
    """
    rules: list[dict[str, Any]] = []
    for nranks in dict.fromkeys(entry.nranks for entry in measured):
        sizes = sorted({entry.nbytes for entry in measured if entry.nranks == nranks})
        for index, nbytes in enumerate(sizes):
            best = _forced(measured, nranks, nbytes)
            if best is None:
                continue
            before, after = sizes[max(index - 1, 0)], sizes[min(index + 1, len(sizes) - 1)]
            first = math.isqrt(before * nbytes) + (before < nbytes)
            rule = {
                "operation": best.collective,
                "algorithm": best.variant.algorithm,
                "protocol": best.variant.protocol,
                "min_bytes": first,
                "max_bytes": math.isqrt(nbytes * after),
                "nranks": nranks,
            }
            last = rules[-1] if rules else {}
            if last.get("max_bytes") == first - 1 and _choice(last) == _choice(rule):
                last["max_bytes"] = rule["max_bytes"]
            else:
                rules.append(rule)
    return rules


def _choice(rule: dict[str, Any]) -> tuple[Any, ...]:
    return rule["algorithm"], rule["protocol"], rule["nranks"]


def _forced(measured: Sequence[Measured], nranks: int, nbytes: int) -> Measured | None:
    entries = [
        entry
        for entry in measured
        if (entry.nranks, entry.nbytes) == (nranks, nbytes)
        and (entry.variant == Variant() or "default" not in astuple(entry.variant)[:2])
        and entry.variant.ctas == "default"
    ]
    best = winner(entries, nranks, nbytes)
    default = next((entry for entry in entries if entry.variant == Variant()), None)
    if best is None or (default and _median(best) * _FASTER > _median(default)):
        return None
    return best
