"""The overlap sweep: sizes, CTAs, policies, priorities, buffers, chunks, loads, ranks."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pynccl import nccl, raw
from pynccl.tools.lab.loads import Load, fit, has_duration, make_load
from pynccl.tools.lab.measure import overlap
from pynccl.tools.lab.operations import BufferKind, Communication
from pynccl.tools.lab.row import Row
from pynccl.tools.lab.steps import align, maximum, new_stream, timed

__all__ = ["POLICIES", "Setting", "combinations", "sweep_overlaps"]

POLICIES = {
    "default": None,
    "efficiency": raw.NCCL_CTA_POLICY_EFFICIENCY,
    "zero": raw.NCCL_CTA_POLICY_ZERO,
}
_TRIES = 5  # runs that measure how long a communication takes


@dataclass(frozen=True)
class Setting:
    """The setting that one row of a sweep is measured with.

    Attributes:
        collective: one of pynccl.tools.lab.operations.COLLECTIVES.
        nbytes: size of the larger buffer in bytes.
        ctas: "default", a number, or "LEAST:MOST" (Config's min_ctas and max_ctas).
        policy: "default", "efficiency" or "zero" (Config's cta_policy).
        priority: priority of the communication stream; lower numbers come first.
        buffer: "plain", "registered" or "window".
        chunks: number of calls that the communication is divided into.
        load: see make_load(): "gemm:256", "memory:64000000", "sleep:0.01", "sleep".
        form: "eager" or "graph".
        nranks: the number of ranks; 0 is all.
    """

    collective: str = "all_reduce"
    nbytes: int = 2**20
    ctas: str = "default"
    policy: str = "default"
    priority: int = 0
    buffer: BufferKind = "plain"
    chunks: int = 1
    load: str = "gemm:256"
    form: Literal["eager", "graph"] = "eager"
    nranks: int = 0

    def config(self) -> nccl.Config | None:
        """The configuration of the communicator.

        Returns:
            A Config, or None if every value is the default.

        Raises:
            ValueError: ctas or policy is invalid.
        """
        options: dict[str, int] = {}
        if self.ctas != "default":
            least, _, most = self.ctas.partition(":")
            if not (least.isdigit() and (most or least).isdigit()):
                raise ValueError(f"ctas: {self.ctas!r} is not default, a number or LEAST:MOST")
            options = {"min_ctas": int(least), "max_ctas": int(most or least)}
        if self.policy not in POLICIES:
            raise ValueError(f"policy: {self.policy!r} is not one of {', '.join(POLICIES)}")
        if (policy := POLICIES[self.policy]) is not None:
            options["cta_policy"] = policy
        return nccl.Config(**options) if options else None  # type: ignore[arg-type]


def combinations(choices: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """The settings of all combinations; the size varies fastest.

    Args:
        choices: names of Setting's attributes, with their values.

    Returns:
        The settings.

    Raises:
        TypeError: Setting has no such attribute.
    """
    names = sorted(choices, key=lambda name: name == "nbytes")
    return [
        Setting(**dict(zip(names, values, strict=True)))
        for values in itertools.product(*(choices[name] for name in names))
    ]


def sweep_overlaps(
    world: nccl.Communicator,
    settings: Iterable[Setting],
    *,
    load_seconds: float | None = None,
    progress: Callable[[int, int, str], object] | None = None,
    **options: Any,  # noqa: ANN401
) -> list[Row]:
    """Measure a row for each setting; all ranks of the communicator call it.

    A setting with fewer ranks runs on the first ones, while the others wait.

    Args:
        world: the communicator of all ranks; those of other settings are split from it.
        settings: the settings, equal on all ranks.
        load_seconds: duration of every load; None fits a load to the communication alone unless
            its name contains seconds, such as "sleep:0.01".
        progress: called before each setting, and after the last, with the number of completed
            settings, the total number of settings, and the name of this one.
        **options: passed to overlap().

    Returns:
        The rows of the settings that this rank took part in, in order.

    Raises:
        TypeError, ValueError: a setting or argument is invalid.
        NcclError: NCCL failed.
    """
    listed = [
        dataclasses.replace(setting, nranks=setting.nranks or world.nranks) for setting in settings
    ]
    for setting in listed:
        if not 1 <= setting.nranks <= world.nranks:
            raise ValueError(f"nranks: {setting.nranks} of {world.nranks} ranks")
    comms = _communicators(world, listed)
    rows = []
    for index, setting in enumerate(listed):
        if progress is not None:
            progress(index, len(listed), describe(setting))
        comm = comms[_key(setting)]
        if comm is not None:
            rows.append(_measure(comm, setting, load_seconds, options))
    if progress is not None:
        progress(len(listed), len(listed), "")
    align(world, new_stream(world))
    for comm in comms.values():
        if comm is not None and comm is not world:
            comm.close()
    return rows


def describe(setting: Setting) -> str:
    """The setting in one line, without default values."""
    changed = [
        f"{field.name} {value}"
        for field in dataclasses.fields(Setting)[2:]
        if (value := getattr(setting, field.name)) != field.default
    ]
    return " ".join([setting.collective, f"{setting.nbytes} B", *changed])


def _key(setting: Setting) -> tuple[int, str, str]:
    return setting.nranks, setting.ctas, setting.policy


def _communicators(
    world: nccl.Communicator, settings: list[Setting]
) -> dict[tuple[int, str, str], nccl.Communicator | None]:
    """The communicator by number of ranks and configuration; None if this rank is not in it."""
    comms: dict[tuple[int, str, str], nccl.Communicator | None] = {}
    for setting in settings:
        if (key := _key(setting)) in comms:
            continue
        config = setting.config()
        if config is None and setting.nranks == world.nranks:
            comms[key] = world
        else:
            color = 0 if world.rank < setting.nranks else None
            comms[key] = world.split(color, world.rank, config=config)
    return comms


def _measure(
    comm: nccl.Communicator,
    setting: Setting,
    load_seconds: float | None,
    options: Mapping[str, Any],
) -> Row:
    load: Load = make_load(setting.load, comm)
    communication = Communication(
        comm,
        setting.collective,
        setting.nbytes,
        buffer=setting.buffer,
        chunks=setting.chunks,
    )
    try:
        stream = new_stream(comm, setting.priority)
        load(stream)  # the first call is slower
        if load_seconds is None and not has_duration(setting.load):
            times = [timed(comm, stream, communication) for _ in range(_TRIES)]
            load_seconds = maximum(comm, stream, [statistics.median(times)])[0]
        if load_seconds is not None:
            fit(load, load_seconds, comm, stream)
        return overlap(
            load,
            communication,
            comm=comm,
            communication_stream=stream,
            form=setting.form,
            setting=dataclasses.asdict(setting),
            **options,
        )
    finally:
        communication.close()
