"""What reading the arguments of a call costs with Python's limited API, which a wheel for all
Pythons (abi3) would have to use, and without it.

    python -m benchmarks.limited_api
"""

from __future__ import annotations

import importlib.util
import platform
import sysconfig
import tempfile
import timeit
from pathlib import Path

from benchmarks import compiler

__all__ = ["main", "measure"]

_LIMITED = "-DPy_LIMITED_API=0x030a0000"  # of Python 3.10: the oldest that is supported
_CALLS = 20_000
_SAMPLES = 200


def _calls(folder: Path, name: str, *options: str) -> timeit.Timer:
    path = compiler.shared_library(
        "limited_api.c", folder / name, [sysconfig.get_path("include")], options
    )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = {"call": module.call, "array": ()}
    return timeit.Timer("call(array, 8, 7, root=1, stream=0)", globals=names)


def measure(samples: int = _SAMPLES) -> dict[str, float]:
    """Time a call with four integers, two of them by keyword: the least of interleaved samples.

    Args:
        samples: how many of each.

    Returns:
        The seconds by the name of the API, ``"full"`` and ``"limited"``.
    """
    with tempfile.TemporaryDirectory(prefix="pynccl-limited-api-") as folder:
        for name in ("full", "limited"):
            Path(folder, name).mkdir()
        timers = {
            "full": _calls(Path(folder), "full"),
            "limited": _calls(Path(folder), "limited", _LIMITED),
        }
        least = dict.fromkeys(timers, float("inf"))
        for _ in range(samples):
            for name, timer in timers.items():
                least[name] = min(least[name], timer.timeit(_CALLS) / _CALLS)
    return least


def main() -> None:
    """Measure and print."""
    seconds = measure()
    print(f"Python {platform.python_version()}, arguments of one call")
    for name, one in seconds.items():
        print(f"{name:<8} {one * 1e9:6.1f} ns")
    print(f"the limited API adds {(seconds['limited'] - seconds['full']) * 1e9:.1f} ns")


if __name__ == "__main__":
    main()
