"""Checks of the arguments of a launch, before a process starts."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pynccl._internal.arguments import wrong_type
from pynccl.testing._rank import Rank

__all__ = ["Environment", "check_integer", "check_seconds", "check_str", "environments", "pickled"]

Environment = tuple[tuple[str, str], ...]


def check_integer(name: str, value: object, least: int) -> None:
    """Raise TypeError unless an argument is an integer, ValueError if it is less than the least."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong_type(name, "an int", value)
    if int(value) < least:
        raise ValueError(f"{name} is {value}, it must be at least {least}")


def check_seconds(name: str, value: object) -> None:
    """Raise TypeError unless an argument is a number, ValueError if it is negative or NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(name, "seconds", value)
    if not float(value) >= 0:
        raise ValueError(f"{name} is {value}, it must be at least 0")


def check_str(name: str, value: object) -> None:
    """Raise TypeError unless an argument is a str."""
    if not isinstance(value, str):
        raise wrong_type(name, "a str", value)


def pickled(
    rank_type: type[Rank],
    fn: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None,
) -> bytes:
    """Return the payload of a job.

    Raises:
        TypeError: fn is not callable, args is not a sequence, kwargs is not a mapping of names, or
            one of them cannot be pickled.
    """
    if not callable(fn):
        raise wrong_type("fn", "a function", fn)
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise wrong_type("args", "a sequence, such as (argument,)", args)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise wrong_type("kwargs", "a mapping", kwargs)
    for name in kwargs or ():
        check_str("kwargs: a name", name)
    try:
        return pickle.dumps((rank_type, fn, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise TypeError(
            f"fn, args and kwargs must be picklable (fn at the top level of a module): {error}"
        ) from error


def environments(
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None, world_size: int
) -> list[Environment]:
    """Return the variables of each rank, as keys of the idle processes.

    Raises:
        TypeError: env is neither a mapping nor a sequence of mappings, or a name or a value in it
            is not a str.
        ValueError: its length is not the number of ranks, or a name is invalid.
    """
    if env is None or isinstance(env, Mapping):
        env = [env or {}] * world_size
    if isinstance(env, (str, bytes)) or not isinstance(env, Sequence):
        raise wrong_type("env", "a mapping or a sequence of mappings", env)
    if len(env) != world_size:
        raise ValueError(f"env has {len(env)} elements, world_size is {world_size}")
    for variables in env:
        if not isinstance(variables, Mapping):
            raise wrong_type("env", "a mapping for each rank", variables)
        for name, value in variables.items():
            check_str("env: a name", name)
            if not name or "=" in name:
                raise ValueError(f"env: {name!r} cannot be the name of a variable")
            if not isinstance(value, str):
                raise TypeError(f"env: {name} is {value!r}, it must be a str")
    return [tuple(sorted(variables.items())) for variables in env]
