"""Runs one rank of a compared script.

    python -m pynccl.tools.compare.worker FOLDER BACKEND DEADLINE SCRIPT [ARGUMENT ...]

Every process group of the script uses the backend, and the script runs under torch's profiler. Its
output is written to ``FOLDER/BACKEND.RANK.out``, its times to ``FOLDER/BACKEND.RANK.json``. If it
still runs at the deadline, a time of ``time.monotonic()``, its stacks are printed.
"""

from __future__ import annotations

import contextlib
import faulthandler
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


def _patch(backend: str) -> None:
    """Replace the backend of every process group, also in modules that imported the functions."""
    for name in ("init_process_group", "new_group"):
        original = getattr(distributed_c10d, name)
        changed = _over(original, backend)
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("torch.") and vars(module).get(name) is original:
                setattr(module, name, changed)


def _seed() -> None:
    """Seed the random generators equally in every run."""
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(0)


def _operations(events: Any, backend: str) -> dict[str, list[float]]:  # noqa: ANN401 - torch's
    """Return the seconds of each of the backend's operations, in their order, by name."""
    found: dict[str, list[float]] = defaultdict(list)
    own = [event for event in events if event.name().startswith(f"{backend}:")]
    for event in sorted(own, key=lambda event: event.start_ns()):
        # gloo and pynccl differ in the names of these: all_gather, _all_gather_base
        name = event.name().partition(":")[2].removeprefix("_").removesuffix("_base")
        found[name].append(event.duration_ns() / 1e9)
    return found


def _main(folder: Path, backend: str, script: str) -> None:
    if backend == "pynccl":
        import pynccl.c10d  # noqa: F401 - registers the backend
    _patch(backend)
    _seed()
    name = f"{backend}.{os.environ['RANK']}"
    printed = folder / f"{name}.out"
    sys.path.insert(0, str(Path(script).resolve().parent))
    with (
        printed.open("w", encoding="utf-8", errors="backslashreplace") as file,
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
    # function_events would take minutes for a million events.
    operations = _operations(profile.kineto_results.events(), backend)
    result = {"seconds": seconds, "operations": operations}
    (folder / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    place, chosen, deadline, program = sys.argv[1:5]
    sys.argv = sys.argv[4:]
    faulthandler.dump_traceback_later(max(0.1, float(deadline) - time.monotonic()))
    _main(Path(place), chosen, program)
