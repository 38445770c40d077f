"""Runs test functions on every rank, with pynccl's mirror initialized."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.launcher import Launcher
    from tests.support.rank import Rank


def world_runner(
    launch: Launcher,
    folder: Path,
    enter: Callable[..., Any],
    **always: Any,  # noqa: ANN401
) -> Callable[..., list[Any]]:
    """Return a callable that runs functions in worlds, each with its own store.

    Args:
        launch: the launcher.
        folder: the folder of the stores.
        enter: run_in_world(), or a function with its parameters.
        **always: options for every launch.
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
        value = function(dist, rank.rank, rank.nranks, *args)
    except BaseException:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        raise
    finally:
        torch.set_default_device(None)
    if dist.is_initialized():
        dist.destroy_process_group()
    return value


def init_on_host(rank: Rank, url: str, **options: Any) -> Any:  # noqa: ANN401
    """Initialize the mirror on CPUs in a rank, and return its module."""
    import pynccl as dist

    dist.init_process_group(
        "host", init_method=url, rank=rank.rank, world_size=rank.nranks, **options
    )
    return dist
