"""The double as a pytest plugin: ``-p tests.doubles.plugin``, or functions for a conftest.

prepare() builds the libraries and sets the environment in which every Python process activates
the double (tests/doubles/site/sitecustomize.py).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles import activate, build

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
NEWEST = [*build.VERSIONS][-1]
# The tests marked gpu, with the reason why they need a real GPU, or "".
COLLECTED = pytest.StashKey[dict[str, str]]()


def prepare(version: str = NEWEST) -> None:
    """Make this process and its children use the double.

    Args:
        version: the NCCL version, one of build.VERSIONS.
    """
    folder = build.build(_ROOT / "build" / "cuda-double")
    _make_scratch()
    site = [str(_HERE / "site"), str(_ROOT)]
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in site]
    os.environ.update(
        PYNCCL_DOUBLE=version,
        PYNCCL_NCCL_LIBRARY=str(build.nccl(folder, version)),
        CUDA_DOUBLE_LIBRARIES=str(folder),
        LD_LIBRARY_PATH=os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]),
        PYTHONPATH=os.pathsep.join(site + paths),
    )
    activate.activate()


def _make_scratch() -> None:
    scratch = Path(tempfile.mkdtemp(prefix="cuda-double-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    os.environ.update(
        CUDA_DOUBLE_FOLDER=str(scratch), CUDA_DOUBLE_REPORT=str(scratch / "violations")
    )


def take_violations() -> list[str]:
    """Return the violations reported by any process since the last call."""
    report = Path(os.environ["CUDA_DOUBLE_REPORT"])
    if not report.exists():
        return []
    lines = report.read_text().splitlines()
    report.unlink()
    return lines


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Activate the double before any conftest or test can load another libcuda.so.1."""
    if "CUDA_DOUBLE_LIBRARIES" not in os.environ:
        try:
            prepare(os.environ.get("PYNCCL_DOUBLE") or NEWEST)
        except build.BuildError as error:
            raise pytest.UsageError(f"the CUDA double cannot be built: {error}") from error


def pytest_configure(config: pytest.Config) -> None:
    """Separate the violations of each pytest-xdist worker."""
    if hasattr(config, "workerinput"):
        _make_scratch()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember the tests that need a real GPU, before -m and -k select."""
    config.stash[COLLECTED] = {
        item.nodeid: next((mark.args[0] for mark in item.iter_markers("needs_gpu")), "")
        for item in items
        if item.get_closest_marker("gpu")
    }


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a real GPU, with the reason from their mark."""
    for mark in item.iter_markers("needs_gpu"):
        pytest.skip(f"needs a real GPU: {mark.args[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that violated device memory rules in any process."""
    take_violations()
    result = yield
    found = take_violations()
    if found and item.get_closest_marker("violations") is None:
        raise AssertionError("the CUDA double reports:\n" + "\n".join(found))
    return result
