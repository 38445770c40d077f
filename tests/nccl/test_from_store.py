"""Proves Communicator.from_store(): results, repeated use, stores of torch and others, argument
errors before the store is used, and time limits if rank 0 or the store is missing.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pynccl import nccl
from pynccl._internal import creation
from tests.nccl.test_life import check_works
from tests.support.blocking import in_threads, interrupt_when_blocked, wait_until
from tests.support.commands import run_python
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.store import FolderStore

_KEY = "pynccl/from_store/1"

_from_store = partial(nccl.Communicator.from_store, provider="host")


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(2, by="provider threads", ids=0)
def test_communicators_in_the_order_of_the_calls(rank: Rank, tmp_path: Path) -> None:
    config = nccl.Config(timeout=31.5)
    store, device = FolderStore(tmp_path / "store"), rank.device
    for _ in range(2):
        with nccl.Communicator.from_store(
            store, rank.rank, 2, config=config, provider=rank.provider, device=device
        ) as comm:
            assert comm.timeout == 31.5
            check_works(rank, comm, [0, 1])
    # A new client of the store continues its order.
    store = FolderStore(tmp_path / "store")
    with nccl.Communicator.from_store(
        store, rank.rank, 2, provider=rank.provider, device=device
    ) as comm:
        check_works(rank, comm, [0, 1])


def _check_pair(stores: list[Any]) -> None:
    def run(rank: int) -> list[int]:
        with _from_store(stores[rank], rank, 2) as comm:
            values = comm.mem_alloc(1, "int32")
            comm.barrier()
            values.close()
            return [comm.rank, comm.nranks]

    assert in_threads(partial(run, 0), partial(run, 1)) == [[0, 2], [1, 2]]


@pytest.mark.parametrize("kind", ["Hash", "File", "TCP", "Prefix"])
def test_stores_of_torch(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch.distributed")
    if kind == "File":
        stores = [torch.FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    elif kind == "TCP":
        first = torch.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        stores = [first, torch.TCPStore("localhost", first.port, is_master=False)]
    else:
        stores = [torch.HashStore()] * 2
    if kind == "Prefix":
        _check_pair([torch.PrefixStore("other", store) for store in stores])
        stores = [torch.PrefixStore("comm", store) for store in stores]
    _check_pair(stores)


def test_other_stores_without_torch(tmp_path: Path) -> None:
    _check_pair([FolderStore(tmp_path / "store") for _ in range(2)])
    program = """
import sys
from pynccl import nccl
from tests.support.store import FolderStore
nccl.Communicator.from_store(FolderStore(sys.argv[1]), 0, 1, provider="host").close()
print("torch" in sys.modules)
"""
    ran = run_python("-c", program, str(tmp_path / "store of one"))
    assert ran.stdout == "False\n", ran


def test_all_ranks_on_one_thread(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    with nccl.group():
        comms = [_from_store(store, rank, 2) for rank in range(2)]
    assert [comm.rank for comm in comms] == [0, 1]
    for comm in comms:
        comm.abort()


class _Unused:
    """A store that must not be called."""

    def _fail(self, *_: object) -> Any:  # noqa: ANN401
        pytest.fail("the store was used")

    add = check = get = set = _fail


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((2, 2), {}, "rank: rank 2 is out of range"),
        ((-1, 2), {}, "rank: rank -1 is out of range"),
        ((0, 0), {}, "nranks: 0 is below 1"),
        (("0", 2), {}, "rank: expected an integer"),
        ((0, None), {}, "nranks: expected an integer"),
        ((0, 1), {"config": {}}, "config: expected a Config or None"),
        ((0, 1), {"provider": "gpu"}, "provider: 'gpu' is neither"),
        ((0, 1), {"device": "cuda"}, "device: 'cuda' does not belong to provider 'host'"),
        ((0, 1), {"store": None}, "store: expected an object with the methods"),
        ((0, 1), {"store": "a store"}, "store: expected an object with the methods"),
    ],
    ids=str,
)
def test_wrong_arguments_do_not_reach_the_store(
    arguments: tuple[Any, Any], options: dict[str, Any], error: str
) -> None:
    options = {"store": _Unused(), **options}
    with pytest.raises((TypeError, ValueError), match=error):
        _from_store(rank=arguments[0], nranks=arguments[1], **options)


def test_a_missing_rank_0(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    began = time.monotonic()
    with pytest.raises(nccl.NcclTimeoutError, match="rank 0 did not share") as caught:
        _from_store(store, 1, 2, config=nccl.Config(init_timeout=0.3))
    assert 0.3 <= time.monotonic() - began < 10
    assert f"within 0.3 s (key '{_KEY}' of the FolderStore)" in str(caught.value)
    error = caught.value
    assert (error.missing_ranks, error.missing_source) == ([0], "store")
    assert (error.function, error.rank) == ("from_store", 1)
    # The late rank 0 creates this communicator, and both then create the next one.
    with pytest.raises(nccl.NcclTimeoutError):
        _from_store(store, 0, 2, config=nccl.Config(init_timeout=0.3))
    _check_pair([store] * 2)


def test_an_interrupt_ends_the_wait(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    interrupt_when_blocked()
    with pytest.raises(KeyboardInterrupt):
        _from_store(FolderStore(tmp_path / "store"), 1, 2, config=nccl.Config(init_timeout=60))
    wait_until(lambda: "pynccl-store" not in [thread.name for thread in threading.enumerate()])


@pytest.mark.parametrize("config", [None, nccl.Config(timeout=0.2)], ids=["default", "timeout"])
def test_the_time_limit_without_init_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: nccl.Config | None
) -> None:
    monkeypatch.setenv("PYNCCL_TIMEOUT", "0.2" if config is None else "100")
    with pytest.raises(nccl.NcclTimeoutError, match=r"within 0\.2 s"):
        _from_store(FolderStore(tmp_path / "store"), 1, 2, config=config)


@pytest.mark.parametrize("seconds", ["0", "1e15"])
def test_no_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("PYNCCL_TIMEOUT", seconds)
    _check_pair([FolderStore(tmp_path / "store") for _ in range(2)])


def test_rank_0_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [FolderStore(tmp_path / "store") for _ in range(2)]
    with pytest.raises(nccl.LibraryNotFoundError):
        _from_store(stores[0], 0, 2, provider="/nowhere/libnccl.so")
    with pytest.raises(nccl.NcclRemoteError, match="rank 0 failed to create the unique id") as told:
        _from_store(stores[1], 1, 2)
    assert "LibraryNotFoundError: " in str(told.value)
    assert "/nowhere/libnccl.so" in str(told.value)
    assert (told.value.function, told.value.rank) == ("from_store", 1)
    _check_pair(stores)


class _Silent(_Unused):
    """A store that does not answer until it is told to."""

    def __init__(self) -> None:
        self.wakes = threading.Event()

    def add(self, *_: object) -> int:
        self.wakes.wait()
        raise RuntimeError("late")


@pytest.mark.parametrize("rank", range(2))
def test_a_silent_store(rank: int) -> None:
    store = _Silent()
    began = time.monotonic()
    with pytest.raises(nccl.NcclTimeoutError, match=r"the _Silent has not answered for 0\.1 s"):
        _from_store(store, rank, 2, config=nccl.Config(init_timeout=0.1))
    assert time.monotonic() - began < 10
    store.wakes.set()


class _Slow(FolderStore):
    """A store that answers after a while."""

    def add(self, key: str, amount: int) -> int:
        time.sleep(0.7)
        return super().add(key, amount)

    def check(self, keys: list[str]) -> bool:
        time.sleep(0.7)
        return super().check(keys)


def test_a_slow_store_is_not_silent(tmp_path: Path) -> None:
    with pytest.raises(nccl.NcclTimeoutError, match="rank 0 did not share") as caught:
        _from_store(_Slow(tmp_path / "store"), 1, 2, config=nccl.Config(init_timeout=1.5))
    assert caught.value.missing_ranks == [0]


class _Overtaken(FolderStore):
    """A store in which rank 0 shares the id while this rank's first check is answered late."""

    def check(self, keys: list[str]) -> bool:
        found = super().check(keys)
        if not found:
            self.set(keys[0], json.dumps({"id": bytes(128).hex()}))
            time.sleep(0.3)
        return found


def test_an_id_that_was_shared_in_time_is_found(tmp_path: Path) -> None:
    store = _Overtaken(tmp_path / "store")
    found = creation.share_id(store, "path", 1, 0, bytes, timeout=0.2, function="from_store")
    assert found == bytes(128)


def test_a_failure_of_rank_0_is_raised_if_the_store_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(creation, "_REPORT", 0.1)
    store = _Silent()
    with pytest.raises(nccl.LibraryNotFoundError):
        _from_store(store, 0, 2, provider="/nowhere/libnccl.so")
    store.wakes.set()


class _Broken(_Unused):
    def add(self, *_: object) -> int:
        raise ConnectionError("the store is gone")


@pytest.mark.parametrize("rank", range(2))
def test_an_error_of_the_store(rank: int) -> None:
    with pytest.raises(ConnectionError, match="the store is gone"):
        _from_store(_Broken(), rank, 2)
