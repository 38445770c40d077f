"""A rank of a compared script: ``python -m pynccl.tools.compare.worker FOLDER BACKEND SCRIPT``.

Runs the script with every process group over one backend, under torch's profiler. Writes what it
printed to ``BACKEND.RANK.out`` and its times to ``BACKEND.RANK.json``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import random
import runpy
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

__all__: list[str] = []


def _over(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Return a function that creates process groups, with its argument ``backend`` replaced."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch's function
        bound = signature.bind(*args, **kwargs)
        bound.arguments["backend"] = backend
        return function(*bound.args, **bound.kwargs)

    return changed


def _operations(events: Any, backend: str) -> dict[str, list[float]]:  # noqa: ANN401 - torch's
    """Return the seconds of each of the backend's operations, in their order, by name."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.time_range.start):
        prefix, _, name = event.name.partition(":")
        if prefix == backend and name:
            # gloo and pynccl differ in the names of these: all_gather, _all_gather_base
            name = name.removeprefix("_").removesuffix("_base")
            found[name].append(event.time_range.elapsed_us() / 1e6)
    return found


def _main(folder: Path, backend: str, script: str) -> None:
    if backend == "pynccl":
        import pynccl.c10d  # noqa: F401 - registers the backend
    for name in ("init_process_group", "new_group"):
        changed = _over(getattr(dist, name), backend)
        setattr(dist, name, changed)
        setattr(distributed_c10d, name, changed)
    torch.manual_seed(0)
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    output = folder / f"{backend}.{os.environ['RANK']}"
    sys.path.insert(0, str(Path(script).resolve().parent))
    with (
        output.with_name(f"{output.name}.out").open("w") as file,
        contextlib.redirect_stdout(file),
        torch.autograd.profiler.profile() as profile,
    ):
        began = time.perf_counter()
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
        seconds = time.perf_counter() - began
    operations = _operations(profile.function_events, backend)
    result = {"seconds": seconds, "operations": operations}
    output.with_name(f"{output.name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    place, chosen, program = sys.argv[1:4]
    sys.argv = sys.argv[3:]
    _main(Path(place), chosen, program)
