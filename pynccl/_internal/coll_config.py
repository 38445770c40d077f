"""CollConfig: the configuration of one collective."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from pynccl import _C
from pynccl._internal.arguments import integer, wrong_type

__all__ = ["CollConfig"]

_MOST = 2**31 - 1
_MOST_POLICIES = 0x03  # all flags NCCL_CTA_POLICY_*
# The integers: their fields of ncclCollConfig_t, and their ranges.
_INTEGERS = {
    "min_ctas": ("minCTAs", 1, _MOST),
    "max_ctas": ("maxCTAs", 1, _MOST),
    "nvls_ctas": ("nvlsCTAs", 1, _MOST),
    "cga_cluster_size": ("cgaClusterSize", 0, 8),
    "cta_policy": ("CTAPolicy", 0, _MOST_POLICIES),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class CollConfig:
    """The configuration of one collective (ncclCollConfig_t, NCCL 2.31).

    Pass it as config= to a collective of a Communicator, with the same values on every rank. None
    leaves a setting to the communicator's Config and to NCCL. A CollConfig is immutable and can be
    reused.

    On CPUs, where a rank is one thread, the CTAs, clusters and policies have no effect.

    Args:
        min_ctas, max_ctas: the minimum and maximum number of CTAs (thread blocks, channels).
        nvls_ctas: the maximum number of CTAs for NVLink SHARP.
        cga_cluster_size: the number of CTAs per cluster, 0 to 8. It must be the same in all
            collectives of a group.
        algorithm: the algorithms that NCCL may choose from, such as "ring" or "tree,ring", or
            "^nvls" for all except one. hostnccl supports "staged" (through shared memory) and
            "direct" (reads the memory of the other ranks). Both return the same bits.
        force_algorithm: True raises an error if the algorithm is unavailable. False lets NCCL
            choose another.
        cta_policy: a combination of the flags NCCL_CTA_POLICY_* of pynccl.raw.
        profiler_tag: a number below 2**63 that NCCL passes to profilers. hostnccl prints it in
            error texts.
        launch_event: an event to record when the operation has been launched, so that another
            stream can overlap with it; on CPUs, when the stream reaches the operation. A pynccl
            Event, a torch or CuPy event, or a cudaEvent_t as an integer, created without timing.
            Pass one on every rank and at most one per communicator in a group, and keep it alive
            until no stream waits for it. Requires NCCL 2.32.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, min_ctas is above max_ctas, or a torch event has no
            cudaEvent_t yet.
    """

    min_ctas: int | None = None
    max_ctas: int | None = None
    nvls_ctas: int | None = None
    cga_cluster_size: int | None = None
    algorithm: str | None = None
    force_algorithm: bool = True
    cta_policy: int | None = None
    profiler_tag: int = 0
    launch_event: object = None
    _struct: _C.ncclCollConfig_t = field(  # read by C++
        init=False, compare=False, default_factory=_C.ncclCollConfig_t
    )

    def __post_init__(self) -> None:
        struct = self._struct
        for name, (member, least, most) in _INTEGERS.items():
            if (value := getattr(self, name)) is None:
                continue
            number = integer(name, value)
            if not least <= number <= most:
                raise ValueError(f"{name}: {number} is not in [{least}, {most}]")
            object.__setattr__(self, name, number)
            setattr(struct, member, number)
        if self.max_ctas is not None and (self.min_ctas or 0) > self.max_ctas:
            raise ValueError(f"min_ctas: {self.min_ctas} is above max_ctas, {self.max_ctas}")
        if not isinstance(self.algorithm, str | None):
            raise wrong_type("algorithm", "a str or None", self.algorithm)
        if self.algorithm == "":
            raise ValueError("algorithm: the string is empty")
        struct.algSelection = self.algorithm
        if not isinstance(self.force_algorithm, bool):
            raise wrong_type("force_algorithm", "a bool", self.force_algorithm)
        struct.forceAlgSelection = self.force_algorithm
        tag = integer("profiler_tag", self.profiler_tag)
        if not 0 <= tag < 2**63:
            raise ValueError(
                f"profiler_tag: {tag} is out of range, must be below 2**63: NCCL reserves the rest"
            )
        object.__setattr__(self, "profiler_tag", tag)
        struct.userProfilerTag = tag
        if self.launch_event is not None:
            struct.launchCompletionEvent = _address_of(self.launch_event)

    def _settings(self) -> dict[str, object]:
        """Return the settings that differ from the defaults."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return {name: value for name, value in given.items() if value != getattr(CollConfig, name)}

    def __repr__(self) -> str:
        return f"CollConfig({', '.join(f'{k}={v!r}' for k, v in self._settings().items())})"

    def __reduce__(self) -> tuple[Callable[[], CollConfig], tuple[()]]:
        return functools.partial(CollConfig, **self._settings()), ()  # type: ignore[arg-type]


def _address_of(event: object) -> int:
    """Return the cudaEvent_t of an event of pynccl, torch or CuPy, or of an integer."""
    attributes = (name for name in ("cuda_event", "ptr", "handle") if hasattr(event, name))
    attribute = next(attributes, None)
    handle: Any = event if attribute is None else getattr(event, attribute)
    try:
        address = operator.index(handle)
    except TypeError:
        expected = "an Event, a torch or CuPy event, or an integer"
        raise wrong_type("launch_event", expected, event) from None
    if address == 0:
        raise ValueError(
            f"launch_event: {event!r} has no cudaEvent_t yet: torch creates it when it is first "
            "recorded"
        )
    return address
