"""Proves that device communicators are created on all ranks for the version of the kernels, that
peers share their resource memory, and that wrong arguments, versions and orders of closing are
refused and leave nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import pickle
import struct
import warnings
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support import gpu, holdings, shared_memory
from tests.support.commands import run_python
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_LIBRARY = 23203  # hostnccl's
_MAGIC = 0xCAFEBEEF


def _array(address: int, count: int) -> np.ndarray:
    """The memory at an address."""
    return np.frombuffer((ctypes.c_int64 * count).from_address(address), np.int64)


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, True), (4, False)])
@on_ranks(by="threads")
def test_lifecycle(rank: Rank) -> None:
    comm, nranks = rank.comm, rank.nranks
    with comm.device_comm(lsa_barriers=2, buffers=(64, 4096)) as dc:
        assert dc.version == _LIBRARY
        assert repr(dc) == "<pynccl.nccl.DeviceComm for kernels of NCCL 2.32.3>"
        content = bytes(dc)
        assert len(content) == 248
        magic, version, own, all_ranks = struct.unpack_from("IIii", content)
        assert (magic, version, own, all_ranks) == (_MAGIC, _LIBRARY, rank.rank, nranks)
        assert ctypes.string_at(dc.pointer(), 248) == content
        assert dc.as_argument(_LIBRARY).tobytes() == content == dc.as_argument("2.32.3").tobytes()
        assert dc.multimem_pointers == ()
        small, large = dc.buffers
        assert (small.nbytes, large.nbytes) == (64, 4096)
        assert small.handle != large.handle
        # Zero at first. Each rank writes to the memory of the next.
        assert not _array(large.address, 512).any()
        comm.barrier()
        _array(large.peer((rank.rank + 1) % nranks), 512)[rank.rank] = 100 + rank.rank
        comm.barrier()
        before = (rank.rank - 1) % nranks
        assert _array(large.address, 512)[before] == 100 + before
        assert _array(large.address, 512).sum() == 100 + before
        assert not _array(small.address, 8).any()
        comm.barrier()
    assert dc.closed
    assert repr(dc) == "<pynccl.nccl.DeviceComm closed>"
    dc.close()
    for use in (
        lambda: bytes(dc), dc.pointer, lambda: dc.as_argument(None), lambda: dc.buffers,
        lambda: large.address, lambda: large.peer(0), lambda: small.handle,
        lambda: dc.multimem_pointers,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="device communicator: it is closed"):
            use()


@on_ranks(2, by="provider")
def test_properties(rank: Rank) -> None:
    p = rank.comm.properties()
    assert (p.rank, p.nranks, p.cuda_device) == (rank.rank, rank.nranks, rank.comm.device)
    # Fields that a version lacks are None.
    version = nccl.get_version(rank.provider)
    assert (p.comm_hash is None) == (p.dev_comm_size is None) == (version < (2, 31, 0))
    assert (p.cft_support is None) == (version < (2, 32, 0))
    assert (p.n_lsa_teams is None) == (version < (2, 29, 7))
    if rank.provider == "cuda":
        return
    assert p.device_api_support is True
    assert p.multimem_support is False
    assert (p.gin_type, p.railed_gin_type, p.gin_connection_type) == ("none",) * 3
    assert p.gin_support == ()
    assert (p.n_lsa_teams, p.host_rma_support, p.dev_comm_size) == (1, True, 248)
    assert (p.cft_support, p.cft_multicast_support, p.cft_counted_support) == (False,) * 3
    hashes = np.zeros(rank.nranks, np.uint64)
    assert p.comm_hash
    hashes[rank.rank] = p.comm_hash
    rank.comm.all_gather(hashes[rank.rank : rank.rank + 1], out=hashes)
    assert (hashes == p.comm_hash).all()
    assert f"rank={rank.rank}, nranks={rank.nranks}" in repr(p)
    with pytest.raises(AttributeError):
        p.rank = 1


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_resources_on_gpus(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommQueryProperties", "ncclDevCommCreate")
    if "CUDA_DOUBLE_LIBRARIES" in os.environ and nccl.get_version("cuda") < (2, 31, 0):
        pytest.skip("the double's engine has device_comm() of NCCL 2.31, the loaded one is older")
    comm = rank.comm
    if not comm.properties().device_api_support:
        pytest.skip("no device API for two ranks on this machine")
    for _ in range(2):
        with comm.device_comm(lsa_barriers=1, buffers=(64, 4096)) as dc:
            own = comm.team_lsa()
            assert dc.pointer() == dc.pointer() != 0
            small, large = dc.buffers
            assert large.address == large.peer(own.rank)
            assert {small.address % 128, large.address % 128} == {0}
            addresses = [buffer.peer(i) for buffer in dc.buffers for i in range(own.nranks)]
            assert len(set(addresses)) == 2 * own.nranks
    assert dc.closed
    comm.symmetric_empty(4).close()  # the order is the same on all ranks


@on_ranks(2)
def test_a_wrong_version_is_refused(rank: Rank) -> None:
    comm = rank.comm
    wrong = [
        (23204, "compiled with NCCL 2.32.4, and the loaded library is 2.32.3: .*older"),
        ("2.33.0", "compiled with NCCL 2.33.0, and the loaded library is 2.32.3"),
        (22809, "compiled with NCCL 2.28.9, and the loaded library is 2.32.3: the structs of 2.28"),
        ("2.27.7", "compiled with NCCL 2.27.7, .* 2.32.3: .*needs NCCL 2.28"),
        ("2.99.99", "compiled with NCCL 2.99.99, and the loaded library is 2.32.3"),
        ("2.31", "version: '2.31' is not a version"),
        ("2.100.0", "version: '2.100.0' is not a version"),
        ("2.31.100", "version: '2.31.100' is not a version"),
        ("1.31.0", "version: '1.31.0' is not a version"),
        ("2.31.2 ", "version: '2.31.2 ' is not a version"),
        (0, "version: it is 0"),
        (-1, "version: -1 is negative"),
    ]
    for version, message in wrong:
        with pytest.raises(ValueError, match=message):
            comm.device_comm(version=version)
    with pytest.raises(TypeError, match="version: "):
        comm.device_comm(version=2.31)
    with comm.device_comm(version="2.31.2") as dc:
        assert dc.version == 23102
        assert struct.unpack_from("II", bytes(dc)) == (_MAGIC, 23102)
        message = "compiled with NCCL 2.32.3, and the device communicator is for .* 2.31.2"
        for mine in (_LIBRARY, "2.32.3"):
            with pytest.raises(ValueError, match=message):
                dc.as_argument(mine)
        assert dc.as_argument(23102).tobytes() == bytes(dc)
    # A version lacks these fields, so NCCL would not read them.
    with pytest.raises(ValueError, match=r"gin_queue_depth: needs NCCL 2.29.7; .* with 2.29.2"):
        comm.device_comm(version="2.29.2", gin_queue_depth=2)
    with pytest.raises(ValueError, match=r"gin_stride: needs NCCL 2.31.0; .* with 2.30.7"):
        comm.device_comm(version="2.30.7", gin_stride=2)
    # hostnccl has the structs of 2.31 and newer.
    with pytest.raises(nccl.NcclInvalidUsageError, match=r"2\.30\.7.*2\.32\.3"):
        comm.device_comm(version="2.30.7")
    comm.barrier()


@on_ranks(2, ids=2)
def test_mistakes_are_refused(rank: Rank) -> None:
    comm = rank.comm
    closed = rank.communicator(1)
    closed.close()
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "lsa_barriers: -1 is negative", {"lsa_barriers": -1}),
        (TypeError, "gin_signals: ", {"gin_signals": 1.5}),
        (ValueError, "buffers: a size is 0", {"buffers": (64, 0)}),
        (TypeError, "buffers: ", {"buffers": 64}),
        (ValueError, "buffers: -8", {"buffers": (-8,)}),
        (TypeError, "teams: ", {"teams": (1,)}),
        (TypeError, "teams: expected Teams", {"teams": 1}),
        (ValueError, "gin_traffic_class: -1 is negative", {"gin_traffic_class": -1}),
        (ValueError, "gin_connection: 'all' is not one of", {"gin_connection": "all"}),
        (ValueError, "gin_type: 'x' is not one of", {"gin_type": "x"}),
    ]
    for error, message, requirements in wrong:
        with pytest.raises(error, match=message):
            comm.device_comm(**requirements)
    for call in (closed.device_comm, closed.properties, closed.team_lsa):
        with pytest.raises(ValueError, match="communicator: it is closed"):
            call()
    with comm.device_comm(buffers=(64,)) as dc:
        for peer in (-1, rank.nranks):
            with pytest.raises(ValueError, match=f"lsa_rank: {peer} is out of range"):
                dc.buffers[0].peer(peer)
    # NCCL refuses it on machines without GIN.
    with pytest.raises(nccl.NcclError, match="ncclDevCommCreate"):
        comm.device_comm(gin_signals=1, gin_connection="full")
    with nccl.plan(), pytest.raises(RuntimeError, match="plan: a device communicator"):
        comm.device_comm()
    comm.barrier()
    world = comm.team_world()
    comm.suspend()
    for use in (
        comm.team_world, comm.team_lsa, comm.team_rail, comm.properties,
        lambda: comm.rank_to_world(world, 0), lambda: comm.rank_to_lsa(world, 0),
    ):  # fmt: skip
        with pytest.raises(nccl.NcclInvalidUsageError, match="communicator: it is suspended"):
            use()
    comm.resume()


@on_ranks(2)
def test_requirements_that_differ_are_refused_on_all_ranks(rank: Rank) -> None:
    with pytest.raises(nccl.NcclInvalidUsageError, match=r"on rank 0.*on rank 1"):
        rank.comm.device_comm(buffers=(4096 * (1 + rank.rank),))
    rank.comm.device_comm(buffers=(4096,)).close()


@on_ranks(2)
def test_it_is_closed_with_its_communicator(rank: Rank) -> None:
    with rank.comm.split(0) as child:
        dc = child.device_comm(buffers=(64,))
        buffer = dc.buffers[0]
    assert dc.closed
    with pytest.raises(ValueError, match="it is closed"):
        _ = buffer.address
    dc.close()
    with contextlib.suppress(KeyError), nccl.group():
        pending = rank.comm.device_comm()
        for use in (lambda: bytes(pending), pending.close):
            with pytest.raises(ValueError, match="still being created"):
                use()
        raise KeyError
    assert pending.closed


def test_several_ranks_in_one_thread() -> None:
    comms = nccl.Communicator.init_all(3, provider="host")
    with nccl.group():
        made = [comm.device_comm(buffers=(64,)) for comm in comms]
        symmetric = [comm.symmetric_empty(3, "int64") for comm in comms]
    for rank, dc in enumerate(made):
        _array(dc.buffers[0].peer(0), 8)[rank] = rank + 1
    assert list(_array(made[0].buffers[0].address, 3)) == [1, 2, 3]
    for rank, buffer in enumerate(symmetric):
        np.from_dlpack(buffer.peer(2))[rank] = rank + 1
    assert list(np.from_dlpack(symmetric[2])) == [1, 2, 3]
    for buffer in symmetric:
        buffer.close()
    for dc in made:
        dc.close()
    for comm in comms:
        comm.close()


def test_a_deleted_one_warns(comm: nccl.Communicator) -> None:
    with pytest.warns(ResourceWarning, match="DeviceComm was not closed"):
        comm.device_comm()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comm.device_comm().close()
        comm.symmetric_empty(4).close()
        left = comm.device_comm()
        comm.close()
        del left
        gc.collect()


@on_ranks(2)
def test_the_order_of_closing_counts_for_windows(rank: Rank) -> None:
    """NCCL allocates resource memory from the address range of windows."""
    comm = rank.comm
    first, second = comm.device_comm(), comm.device_comm()
    (first if rank.rank == 0 else second).close()
    memory = comm.mem_alloc(4096)
    with pytest.raises(ValueError, match="rank 0 and rank 1 have different windows open"):
        comm.register_window(memory)
    (second if rank.rank == 0 else first).close()
    comm.register_window(memory).close()


@on_ranks(2)
def test_of_a_nonblocking_communicator(rank: Rank) -> None:
    with rank.communicator(config=nccl.Config(blocking=0)) as comm:
        comm.wait_ready(30)
        with comm.device_comm(buffers=(64,)) as dc:
            assert len(bytes(dc)) == 248
            assert dc.buffers[0].address


def _use_device_communicators(comm: nccl.Communicator) -> None:
    for dc in [comm.device_comm(lsa_barriers=2, buffers=(1 << 20,)) for _ in range(3)]:
        dc.close()
    with comm.symmetric_empty(1000) as buffer:
        buffer.peer(0)


def _leaves_nothing(rank: Rank) -> None:
    for _ in range(5):
        _use_device_communicators(rank.comm)
    before = holdings.count()
    for _ in range(25):
        _use_device_communicators(rank.comm)
    holdings.check(before)


def test_nothing_leaks(launch: Launcher) -> None:
    before = shared_memory.entries()
    launch(2, _leaves_nothing, fresh=True)
    assert not shared_memory.left_behind(before)


# Teams

_WORLD = nccl.Team(8, 5)


def test_teams_are_values() -> None:
    assert nccl.Team(8, 5) == _WORLD == nccl.Team(nranks=8, rank=5, stride=1)
    assert nccl.Team(8, 4) != _WORLD != 5
    assert len({_WORLD, nccl.Team(8, 5), nccl.Team(4, 1, 2)}) == 2
    assert repr(_WORLD) == "Team(nranks=8, rank=5, stride=1)"
    assert pickle.loads(pickle.dumps(_WORLD)) == _WORLD
    with pytest.raises(AttributeError):
        _WORLD.rank = 1
    for message, arguments in {
        "nranks: 0 is below 1": (0, 0),
        "rank: 8 is out of range": (8, 8),
        "rank: -1 is out of range": (8, -1),
        "stride: it is 0": (8, 0, 0),
    }.items():
        with pytest.raises(ValueError, match=message):
            nccl.Team(*arguments)
    with pytest.raises(TypeError, match="nranks: "):
        nccl.Team("8", 0)


def _members(team: nccl.Team) -> list[int]:
    """The world ranks of the team of world rank 5."""
    return [5 + (i - team.rank) * team.stride for i in range(team.nranks)]


def test_inner_and_outer_teams() -> None:
    assert _members(_WORLD.inner(4)) == [4, 5, 6, 7]
    assert _members(_WORLD.outer(4)) == [1, 5]
    assert _members(_WORLD.inner(2).inner(1)) == [5]
    assert _members(_WORLD.outer(2)) == [1, 3, 5, 7]
    assert _members(_WORLD.outer(2).inner(2)) == [5, 7]
    assert _WORLD.outer(2) == nccl.Team(4, 2, 2)
    for size in (0, 3, 16, -2):
        for factor in (_WORLD.inner, _WORLD.outer):
            with pytest.raises(ValueError, match=f"size: {size} does not divide"):
                factor(size)


def test_ranks_of_other_teams() -> None:
    """Compared with sets of world ranks."""
    teams = [*map(_WORLD.outer, (1, 2, 4)), nccl.Team(8, 2, -1)]
    for mine, theirs in itertools.product(teams, teams):
        for rank, world in enumerate(_members(theirs)):
            inside = world in _members(mine)
            assert mine.is_member(theirs, rank) == inside
            if inside:
                assert mine.rank_of(theirs, rank) == _members(mine).index(world)
            else:
                with pytest.raises(ValueError, match=f"rank: {rank} of Team.* is not in Team"):
                    mine.rank_of(theirs, rank)
        with pytest.raises(ValueError, match="rank: 8 is out of range for Team"):
            mine.is_member(theirs, 8)


def test_ranks_outside_of_a_subset() -> None:
    subsets = [
        _WORLD, _WORLD.inner(1), _WORLD.inner(2), _WORLD.inner(4), _WORLD.outer(2),
        _WORLD.outer(4), _WORLD.outer(2).inner(2), nccl.Team(2, 0, -3), nccl.Team(3, 0, -2),
    ]  # fmt: skip
    for subset in subsets:
        outside = sorted(set(range(8)) - set(_members(subset)))
        found = [_WORLD.rank_in_difference(subset, i) for i in range(len(outside))]
        assert found == outside, subset
        for index in (-1, len(outside)):
            with pytest.raises(ValueError, match=f"index: {index} is out of range"):
                _WORLD.rank_in_difference(subset, index)
    for team in (nccl.Team(16, 5), nccl.Team(4, 0), nccl.Team(3, 0, 2)):
        with pytest.raises(ValueError, match=r"subset: .* is not a part of"):
            _WORLD.rank_in_difference(team, 0)


@on_ranks(4)
def test_teams_of_a_communicator(rank: Rank) -> None:
    comm, nranks = rank.comm, rank.nranks
    world = comm.team_world()
    assert world == nccl.Team(nranks, rank.rank) == comm.team_lsa()
    assert comm.team_rail() == nccl.Team(1, 0, nranks)
    outer = world.outer(2)
    for i in range(outer.nranks):
        assert comm.rank_to_world(outer, i) == 2 * i + rank.rank % 2 == comm.rank_to_lsa(outer, i)
    outside = nccl.Team(2, 0, nranks)
    assert comm.rank_to_lsa(outside, 1) is None
    with pytest.raises(ValueError, match=r"team: .* is not a part of the communicator"):
        comm.rank_to_world(outside, 1)
    with pytest.raises(ValueError, match="rank: 2 is out of range for Team"):
        comm.rank_to_world(outside, 2)


_SLOW_IMPORT = """
import sys, threading, time
import pynccl._internal.team
from pynccl import nccl
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "pynccl._internal.team":
            time.sleep(0.5)
def convert():
    try:
        comm.rank_to_world(5, 0)
    except TypeError as error:
        sys.stdout.write(f"{error}\\n")
comm = nccl.Communicator.init_all(1, provider="host")[0]
del sys.modules["pynccl._internal.team"]
sys.meta_path.insert(0, Finder())
threads = [threading.Thread(target=convert) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
comm.close()
"""


def test_wrong_teams_of_two_threads() -> None:
    """The first use does not wait for another thread's import with the GIL."""
    ran = run_python("-c", _SLOW_IMPORT)
    assert ran.stdout.splitlines() == ["team: expected a Team, got 5 (int)"] * 2, ran.stderr
