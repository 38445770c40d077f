"""Tests that are the function of a rank: on_ranks() launches it on every rank of a world."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tests.support.launcher import Launcher, Options

__all__ = ["on_ranks"]


def on_ranks(
    nranks: int = 0,
    *,
    by: str = "",
    fresh: bool = False,
    **options: Unpack[Options],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the test calls the function on every rank of a world, first argument its Rank.

    The function's other arguments are fixtures or parameters of the test, and must be picklable.

    Args:
        nranks: the world size.
        by: the launch options that are fixtures or parameters of the test, separated by spaces:
            ``"provider threads"``, or ``"nranks"`` for the world size.
        fresh: use new processes.
        **options: other options of the launch.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        from_test = by.split()
        arguments = list(inspect.signature(function).parameters)[1:]

        @functools.wraps(function)
        def test(launch: Launcher, **values: Any) -> None:  # noqa: ANN401
            chosen = {name: values[name] for name in from_test}
            size = chosen.pop("nranks", nranks)
            passed = [values[name] for name in arguments]
            launch(size, function, *passed, fresh=fresh, **options, **chosen)

        names = dict.fromkeys(["launch", *from_test, *arguments])
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        # The ranks' processes find the function by its name: the test's name is that of the test.
        test.on_rank = function  # type: ignore[attr-defined]
        function.__qualname__ = f"{function.__qualname__}.on_rank"
        return test

    return decorate
