"""Runs the functions of tests on every rank, with pynccl's mirror initialized."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.launcher import Launcher
    from tests.support.rank import Rank


def on_ranks(
    *sizes: int,
    fixture: str = "",
    **options: Any,  # noqa: ANN401
) -> Callable[[Callable[..., None]], Any]:
    """Make a test of a function that every rank of a world runs.

    The first parameters of the function are those that the fixture passes: ``(dist, rank, size)``,
    or ``(rank, size)`` if the fixture is torch_world or device_world. The others are the test's:
    fixtures and parameters, whose values every rank gets.

    Args:
        *sizes: the world sizes; without any, the module parametrizes ``nranks``.
        fixture: what runs the function; world or torch_world by default.
        **options: of the fixture.
    """

    def decorate(function: Callable[..., None]) -> Any:  # noqa: ANN401
        parameters = list(inspect.signature(function).parameters.values())
        has_dist = parameters[0].name == "dist"
        own = [parameter.name for parameter in parameters[2 + has_dist :]]
        runner = fixture or ("world" if has_dist else "torch_world")

        def test(**given: Any) -> None:  # noqa: ANN401
            values = [given[name] for name in own]
            given[runner](given["nranks"], test, *values, **options)

        # Pickled by its name, which is that of the function.
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(test, name, getattr(function, name))
        kind = inspect.Parameter.KEYWORD_ONLY
        names = [runner, "nranks", *own]
        vars(test)["__signature__"] = inspect.Signature(
            [inspect.Parameter(name, kind) for name in names]
        )
        vars(test)["on_each_rank"] = function
        return pytest.mark.parametrize("nranks", sizes)(test) if sizes else test

    return decorate


def of_ranks(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a rank calls: the function itself, or that of a test of on_ranks()."""
    return getattr(function, "on_each_rank", function)


def world_runner(
    launch: Launcher,
    folder: Path,
    enter: Callable[..., Any],
    **always: Any,  # noqa: ANN401
) -> Callable[..., list[Any]]:
    """What runs functions in worlds, each with a store of its own.

    Args:
        launch: the launcher.
        folder: for the stores.
        enter: run_in_world(), or a function with its parameters.
        **always: options of the launcher.
    """
    numbers = itertools.count()

    def run(
        nranks: int,
        function: Callable[..., Any],
        *args: object,
        init: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> list[Any]:
        url = f"file://{folder}/store{next(numbers)}"
        env = {**always.get("env", {}), **options.pop("env", {})}
        return launch(
            nranks, enter, function, url, init or {}, args, **always | {"env": env}, **options
        )

    return run


def run_in_world(
    rank: Rank,
    function: Callable[..., Any],
    url: str,
    init: dict[str, Any],
    args: tuple[Any, ...],
) -> Any:  # noqa: ANN401
    """Call a function between init_process_group and destroy_process_group."""
    import torch

    import pynccl as dist

    backend = "host"
    if rank.device is not None:
        backend = "nccl"
        torch.cuda.set_device(rank.device)
        torch.set_default_device(f"cuda:{rank.device}")
    options = {"backend": backend, "timeout": timedelta(seconds=30), **init}
    dist.init_process_group(init_method=url, world_size=rank.nranks, rank=rank.rank, **options)
    try:
        value = of_ranks(function)(dist, rank.rank, rank.nranks, *args)
    except BaseException:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        raise
    finally:
        torch.set_default_device(None)
    if dist.is_initialized():
        dist.destroy_process_group()
    return value
