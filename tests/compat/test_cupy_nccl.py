"""Proves that the module has the names and signatures of CuPy's, and NCCL's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pynccl.compat import cupy_nccl as nccl
from pynccl.errors import NcclInvalidArgumentError
from pynccl.libraries import load
from tests.support.commands import run_python

_COUNT = 100


@pytest.fixture(autouse=True)
def _on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYNCCL_COMPAT_PROVIDER", "host")
    nccl._library.cache_clear()


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_a_communicator_of_one_rank() -> None:
    comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    assert (comm.rank_id(), comm.size(), comm.device_id()) == (0, 1, 0)
    comm.check_async_error()
    x, y = np.arange(_COUNT, dtype=np.float32), np.zeros(_COUNT, np.float32)
    calls = {
        "allReduce": (_COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM),
        "reduce": (_COUNT, nccl.NCCL_FLOAT, nccl.NCCL_MAX, 0),
        "broadcast": (_COUNT, nccl.NCCL_FLOAT, 0),
        "reduceScatter": (_COUNT, nccl.NCCL_FLOAT, nccl.NCCL_AVG),
        "allGather": (_COUNT, nccl.NCCL_FLOAT),
    }
    for name, arguments in calls.items():
        y[:] = 0
        getattr(comm, name)(_address(x), _address(y), *arguments, 0)
        assert np.array_equal(x, y), name
    comm.bcast(_address(x), _COUNT, nccl.NCCL_FLOAT32, 0, 0)
    split = comm.commSplit(0, 0, nccl.NcclConfig(split_share=1))
    assert split.size() == 1
    split.destroy()
    assert comm.commSplit(-1, 0) is None
    comm.destroy()
    assert comm.comm == 0
    comm.destroy()
    comm.abort()


def test_ranks_of_one_thread() -> None:
    comms = nccl.NcclCommunicator.initAll(2)
    assert [comm.rank_id() for comm in comms] == [0, 1]
    sent = [np.full(_COUNT, rank + 1.0) for rank in range(2)]
    received = [np.zeros(_COUNT) for _ in range(2)]
    nccl.groupStart()
    for rank, comm in enumerate(comms):
        comm.send(_address(sent[rank]), _COUNT, nccl.NCCL_FLOAT64, 1 - rank, 0)
        comm.recv(_address(received[rank]), _COUNT, nccl.NCCL_DOUBLE, 1 - rank, 0)
    nccl.groupEnd()
    assert [array[0] for array in received] == [2, 1]
    for comm in nccl.NcclCommunicator.initAll([0]):
        comm.abort()
    for comm in comms:
        comm.abort()


def test_errors_and_versions() -> None:
    nccl.check_status(0)
    with pytest.raises(NcclInvalidArgumentError, match="invalid argument") as caught:
        nccl.check_status(4)
    assert caught.value.code == 4
    with pytest.raises(nccl.NcclError):
        nccl.NcclCommunicator(0, nccl.get_unique_id(), 0)
    assert nccl.get_version() == load("host").version
    assert nccl.get_build_version() > 22000
    assert nccl.available
    assert len(nccl.get_unique_id()) == 128


_CUPY = """
import json, sys
from cupy.cuda import nccl
names = {n: v if isinstance(v, int) else None for n, v in vars(nccl).items()
         if not n.startswith("_") and n != "annotations"}
methods = {n: getattr(nccl.NcclCommunicator, n).__doc__.splitlines()[0]
           for n in vars(nccl.NcclCommunicator) if not n.startswith("_") and n != "comm"}
print(json.dumps([names, methods]))
"""


def test_it_has_the_names_and_parameters_of_cupy() -> None:
    pytest.importorskip("cupy")
    import inspect
    import json

    preload = Path(load("host").path).parent / "preload"
    done = run_python("-W", "ignore", "-c", _CUPY, timeout=120, LD_LIBRARY_PATH=str(preload))
    assert done.returncode == 0, done.stderr
    names, methods = json.loads(done.stdout)
    assert set(names) == set(nccl.__all__)
    for name, value in names.items():
        if value is not None:
            assert getattr(nccl, name) == value, name
    for name, head in methods.items():
        own = getattr(nccl.NcclCommunicator, name)
        text = head.partition("(")[2].rpartition(")")[0]
        theirs = [one.partition("=")[0].split()[-1] for one in text.split(",")]
        mine = list(inspect.signature(own).parameters)
        assert mine == theirs, name
