"""on_ranks(): tests written as the function of a rank, launched on every rank of a world."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["of_ranks", "on_ranks"]


def on_ranks(
    *sizes: int,
    by: str = "",
    fixture: str = "",
    **options: Any,  # noqa: ANN401
) -> Callable[[Callable[..., None]], Any]:
    """Decorate a function into a test that calls it on every rank of a world.

    The first parameters of the function are ``rank``, its Rank, or ``(dist, rank, size)``, with the
    mirror initialized, or ``(rank, size)``, with torch.distributed initialized. The others are
    fixtures or parameters of the test and must be picklable.

    Args:
        *sizes: the world sizes; if none, the test or its module provides ``nranks``.
        by: the launch options taken from fixtures or parameters, separated by spaces:
            ``"provider threads"``.
        fixture: the fixture that launches the ranks; by default launch, world or torch_world,
            depending on the parameters.
        **options: options of the fixture.
    """

    def decorate(function: Callable[..., None]) -> Any:  # noqa: ANN401
        parameters = list(inspect.signature(function).parameters)
        has_dist, has_size = parameters[0] == "dist", "size" in parameters[1:3]
        arguments = parameters[1 + has_dist + has_size :]
        default = "world" if has_dist else "torch_world" if has_size else "launch"
        runner, from_test = fixture or default, by.split()

        @functools.wraps(function)
        def test(**values: Any) -> None:  # noqa: ANN401
            chosen = {name: values[name] for name in from_test}
            size = values["nranks"] if len(sizes) != 1 else sizes[0]
            passed = [values[name] for name in arguments]
            values[runner](size, function, *passed, **options, **chosen)

        nranks = [] if len(sizes) == 1 else ["nranks"]
        names = dict.fromkeys([runner, *nranks, *from_test, *arguments])
        test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        )
        # The ranks' processes look up the function by name, and that name belongs to the test.
        test.on_rank = function  # type: ignore[attr-defined]
        function.__qualname__ = f"{function.__qualname__}.on_rank"
        return pytest.mark.parametrize("nranks", sizes)(test) if len(sizes) > 1 else test

    return decorate


def of_ranks(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a rank calls: itself, or the function of an on_ranks() test."""
    return getattr(function, "on_rank", function)
