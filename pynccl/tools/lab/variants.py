"""Variants of a collective: algorithms, protocols and CTAs, and how NCCL is configured for them.

With libnccl, an algorithm and a protocol are chosen by environment variables of new processes. With
hostnccl, an algorithm is a path, which is chosen in the configuration of a call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "FUNCTIONS",
    "Variant",
    "environment",
    "variants",
]

FUNCTIONS = {  # the names in NCCL's variables of the collectives that have algorithms
    "all_reduce": "AllReduce",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
}
_HOST_PATHS = ("staged", "direct", "window")
_PER_FUNCTION = (2, 24, 0)  # the first whose variables take lists for single functions
_DEFAULT = "default"


@dataclass(frozen=True)
class Variant:
    """A variant of a collective.

    Attributes:
        algorithm: NCCL's name in lower case, such as "ring" or "tree"; for hostnccl "staged",
            "direct" or "window" (direct, on buffers in windows); "default" is NCCL's choice.
        protocol: "ll", "ll128", "simple" or "default".
        ctas: the number of CTAs, or "default".
    """

    algorithm: str = _DEFAULT
    protocol: str = _DEFAULT
    ctas: str = _DEFAULT

    def __str__(self) -> str:
        parts = [part for part in (self.algorithm, self.protocol) if part != _DEFAULT]
        if self.ctas != _DEFAULT:
            parts.append(f"{self.ctas} CTAs")
        return " ".join(parts) or _DEFAULT


def variants(
    provider: str,
    collective: str,
    algorithms: Sequence[str],
    protocols: Sequence[str],
    ctas: Sequence[str],
) -> list[Variant]:
    """All combinations, the default first.

    Raises:
        ValueError: the provider or the collective does not offer this choice.
    """
    for algorithm in algorithms:
        if algorithm == _DEFAULT:
            continue
        if provider == "host" and algorithm not in _HOST_PATHS:
            raise ValueError(
                f"algorithms: {algorithm!r} is not a path of hostnccl: {', '.join(_HOST_PATHS)}"
            )
        if collective not in FUNCTIONS and (provider == "cuda" or collective == "send_recv"):
            raise ValueError(f"algorithms: {collective} has none to choose from")
    if provider == "host" and (set(protocols) | set(ctas)) - {_DEFAULT}:
        raise ValueError("protocols, ctas: hostnccl has neither; a rank is one thread")
    for number in ctas:
        if number != _DEFAULT and not number.isdigit():
            raise ValueError(f"ctas: {number!r} is neither default nor a number")
    found = [Variant(*choice) for choice in itertools.product(algorithms, protocols, ctas)]
    return list(dict.fromkeys([Variant(), *found]))


def environment(variant: Variant, collective: str, version: tuple[int, int, int]) -> dict[str, str]:
    """The environment variables that select a variant's algorithm and protocol in libnccl.

    From NCCL 2.24 on, only this collective is restricted. All others are set to ring, since NCCL
    2.31 and later disable collectives that NCCL_ALGO does not name.
    """
    env = {}
    function = FUNCTIONS.get(collective, "")
    if variant.algorithm != _DEFAULT:
        named = f"ring;{function}:{variant.algorithm}"
        env["NCCL_ALGO"] = named if version >= _PER_FUNCTION else variant.algorithm
    if variant.protocol != _DEFAULT:
        named = f"{function}:{variant.protocol}"
        env["NCCL_PROTO"] = named if version >= _PER_FUNCTION else variant.protocol
    return env
