"""Proves Communicator.borrow(): a borrowed communicator gives the results of its owner, ends with
it and never ends it, whichever is closed, deleted or aborted first; and a handle is refused if its
owner has closed it or it belongs to another library.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import check_works
from tests.support import gpu
from tests.support.blocking import Blocked
from tests.support.commands import run_python
from tests.support.in_world import init_on_host
from tests.support.preload import run_client
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_ROOT = Path(__file__).parents[2]


_FORMS: dict[str, Callable[[nccl.Communicator], nccl.Communicator]] = {
    "object": nccl.Communicator.borrow,
    "integer": lambda comm: nccl.Communicator.borrow(comm.handle, provider=comm.library.path),
    "borrowed": lambda comm: nccl.Communicator.borrow(nccl.Communicator.borrow(comm)),
}


def _use(rank: Rank, comm: nccl.Communicator) -> None:
    """Collectives, messages, groups and children."""
    check_works(rank, comm, list(range(rank.nranks)))
    one = rank.memory.put(np.full(5, 1.0 + comm.rank, np.float32))
    other = rank.memory.put(np.zeros(5, np.float32))
    with nccl.group():
        comm.send(one, 1 - comm.rank)
        comm.recv(other, 1 - comm.rank)
    assert (rank.memory.get(other) == 2.0 - comm.rank).all()
    with comm.split(0) as child:
        check_works(rank, child, list(range(rank.nranks)))


@pytest.mark.parametrize("form", _FORMS)
@on_ranks(2, by="provider")
def test_results_and_close(rank: Rank, form: str) -> None:
    owner = rank.communicator()
    comm = _FORMS[form](owner)
    assert comm.borrowed
    assert not owner.borrowed
    assert (comm.rank, comm.nranks, comm.device) == (owner.rank, owner.nranks, owner.device)
    assert comm.handle == owner.handle
    assert comm.library is owner.library
    assert repr(comm).endswith("borrowed>")
    _use(rank, comm)
    _use(rank, owner)
    assert [entry.operation for entry in comm.flight_record()][-1] == "recv"
    comm.close()
    comm.close()
    assert comm.closed
    assert not owner.closed
    with pytest.raises(ValueError, match="closed"):
        comm.all_reduce(rank.memory.put(np.ones(1)))
    _use(rank, owner)
    again = _FORMS[form](owner)
    owner.close()
    assert again.closed
    with pytest.raises(ValueError, match="closed"):
        again.all_reduce(rank.memory.put(np.ones(1)))


@pytest.mark.parametrize("end", ["close", "abort"])
@on_ranks(2, by="provider")
def test_end_of_the_owner(rank: Rank, end: str) -> None:
    owner = rank.communicator()
    comm = nccl.Communicator.borrow(owner)
    array = rank.memory.put(np.ones(3, np.float32))
    comm.all_reduce(array)
    assert (rank.memory.get(array) == 2).all()
    getattr(owner, end)()
    assert comm.closed
    for call in (
        lambda: comm.all_reduce(array),
        lambda: comm.handle,
        lambda: comm.split(0),
        comm.revoke,
        lambda: nccl.Communicator.borrow(comm),
        lambda: nccl.Communicator.borrow(owner),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ValueError, match="closed"), nccl.group():
        comm.all_reduce(array)
    comm.close()


@on_ranks(2, by="provider")
def test_garbage_collection(rank: Rank) -> None:
    """Deleting a borrowed communicator does not end its owner, which it keeps alive."""
    owner = rank.communicator()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nccl.Communicator.borrow(owner)
        gc.collect()
        _use(rank, owner)
        kept = nccl.Communicator.borrow(owner)
        del owner
        gc.collect()
        _use(rank, kept)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        kept.close()  # the last reference to the owner, which was not closed
    assert "was not closed" in str(raised[0].message)
    assert kept.closed


@on_ranks(2, by="provider")
def test_calls_reserved_to_the_owner(rank: Rank) -> None:
    owner = rank.comm
    comm = nccl.Communicator.borrow(owner)
    calls: dict[str, Callable[[], Any]] = {
        "abort": comm.abort,
        "finalize": comm.finalize,
        "suspend": comm.suspend,
        "resume": comm.resume,
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name}: the communicator is borrowed"):
            call()
    buffer = comm.mem_alloc(4096)
    with comm.register(buffer):
        with pytest.raises(ValueError, match="close them first"):
            comm.close()
        assert not comm.closed
    with pytest.raises(ZeroDivisionError), comm:
        raise ZeroDivisionError
    assert comm.closed
    _use(rank, owner)


@on_ranks(2)
def test_windows(rank: Rank) -> None:
    owner = rank.comm
    with nccl.Communicator.borrow(owner) as comm:
        buffer = comm.mem_alloc(4096)
        window = comm.register_window(buffer)
        with pytest.raises(ValueError, match="close them first"):
            comm.close()
        window.close()
        comm.register_window(buffer)  # deleted: its memory stays with the owner's communicator
    del buffer
    gc.collect()
    _use(rank, owner)


@on_ranks(2, by="provider")
def test_a_suspended_owner(rank: Rank) -> None:
    comm = nccl.Communicator.borrow(rank.comm)
    rank.comm.suspend()
    with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"):
        comm.all_reduce(rank.memory.put(np.ones(1)))
    rank.comm.resume()
    _use(rank, comm)


@on_ranks(2)
def test_a_time_limit_revokes_and_frees_nothing(rank: Rank) -> None:
    owner = rank.communicator()
    comm = nccl.Communicator.borrow(owner)
    comm.timeout = 0.3
    if rank.rank == 0:
        with pytest.raises(nccl.NcclTimeoutError, match=r"all_reduce.* did not complete"):
            comm.all_reduce(np.ones(3))
        assert comm.expired
        assert comm.revoked
        assert owner.revoked
        assert not owner.closed
        with pytest.raises(nccl.NcclInvalidUsageError):
            owner.all_reduce(np.ones(3))
        rank.set_event("done")
    else:
        rank.wait_event("done", 0)
        owner.revoke()
        assert comm.revoked
    comm.close()
    owner.close()


@on_ranks(2)
def test_an_abort_of_the_owner_ends_calls(rank: Rank) -> None:
    owner = rank.communicator()
    comm = nccl.Communicator.borrow(owner)
    comm.all_reduce(np.ones(1))
    if rank.rank == 1:
        rank.wait_event("done", 0)
        owner.abort()
        return
    blocked = Blocked(lambda: comm.all_reduce(np.ones(3)))
    blocked.wait()
    owner.abort()
    blocked.end("aborted")
    rank.set_event("done")
    assert comm.closed


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("works", "ends", "how"),
    [
        ("borrower", "owner", "abort"),
        ("borrower", "owner", "revoke"),
        ("borrower", "other", "revoke"),
        ("owner", "other", "deadline"),
        ("borrower", "owner", "deadline"),
    ],
)
@on_ranks(2, provider="cuda")
def test_the_end_of_one_fails_the_queued_work_of_all(
    rank: Rank, works: str, ends: str, how: str
) -> None:
    """NCCL ends the kernels of all communicators of the handle, as if they had completed."""
    if ends == "other":  # an older NCCL ends them only with their owner
        gpu.require(rank.provider, "ncclCommRevoke")
    owner = rank.communicator()
    comms = {
        "owner": owner,
        "borrower": nccl.Communicator.borrow(owner),
        "other": nccl.Communicator.borrow(owner),
    }
    array = rank.memory.put(np.ones(3, np.float32))
    owner.all_reduce(array)
    rank.memory.get(array)
    if rank.rank == 1:
        rank.wait_event("done", 0)
        owner.abort()
        return
    work, late = rank.stream(), rank.stream()
    comms[works].all_reduce(array, stream=work)
    if how == "deadline":
        with nccl.deadline(0.5):
            comms[ends].all_reduce(array, stream=late)
        with pytest.raises(nccl.NcclTimeoutError):
            late.synchronize()
    else:
        getattr(comms[ends], how)()
    with pytest.raises(nccl.NcclTimeoutError if how == "deadline" else nccl.NcclInvalidUsageError):
        work.synchronize()
    rank.set_event("done")
    owner.abort()


@on_ranks(2)
def test_recover(rank: Rank) -> None:
    owner = rank.communicator()
    with nccl.Communicator.borrow(owner).recover() as comm:
        assert not comm.borrowed
        check_works(rank, comm, [0, 1])
    assert not owner.closed
    owner.close()


@on_ranks(2, by="provider")
def test_graphs(rank: Rank) -> None:
    owner, stream = rank.communicator(), rank.stream()
    comm = nccl.Communicator.borrow(owner)
    array = rank.memory.put(np.ones(3, np.float32))
    comm.all_reduce(array)
    with nccl.capture(stream) as graph:
        comm.all_reduce(array, stream=stream)
        with pytest.raises(ValueError, match="a capture in progress uses it"):
            owner.close()
    graph.launch(stream)
    stream.synchronize()
    assert (rank.memory.get(array) == 4).all()
    owner.close()
    with pytest.raises(ValueError, match="was closed"):
        graph.launch(stream)


def test_wrong_owners(comm: nccl.Communicator) -> None:
    borrow: Any = nccl.Communicator.borrow
    for wrong in (True, None, "comm", 1.5, object()):
        with pytest.raises(TypeError, match=rf"^owner: .* got {type(wrong).__name__}"):
            borrow(wrong)
    for number in (0, -1, 2**64):
        with pytest.raises(ValueError, match=rf"^owner: {number} is not an address"):
            borrow(number, provider="host")
    with pytest.raises(nccl.NcclInvalidArgumentError):
        borrow(12345, provider="host")
    with pytest.raises(ValueError, match=r"^device: 0 is given"):
        borrow(comm, device=0)
    with (
        pytest.raises(ValueError, match=r"^borrow: it cannot be called inside group"),
        nccl.group(),
    ):
        borrow(comm)
    handle = comm.handle
    comm.close()
    with pytest.raises(nccl.NcclInvalidArgumentError):
        borrow(handle, provider="host")


@pytest.mark.gpu
@on_ranks(1, provider="cuda")
def test_a_handle_of_another_library(rank: Rank) -> None:
    with pytest.raises(ValueError, match=r"^provider: the communicator belongs to"):
        nccl.Communicator.borrow(rank.comm, provider="host")
    with pytest.raises(nccl.NcclError):
        nccl.Communicator.borrow(nccl.Communicator.init_all(1, provider="host")[0].handle)


_EXIT = """
import gc, os
import numpy as np
from pynccl import nccl
owner = nccl.Communicator.init_all(1, provider="host")[0]
comm = nccl.Communicator.borrow(owner)
child = os.fork()
if child == 0:
    try:
        comm.all_reduce(np.ones(2))
    except nccl.NcclError:
        del comm
        gc.collect()
        comm = nccl.Communicator.borrow(nccl.Communicator.init_all(1, provider="host")[0])
        comm.all_reduce(np.ones(2))
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
comm.all_reduce(np.ones(2))
if {close}:
    owner.close()
print("end")
"""


@pytest.mark.parametrize("close", [True, False])
def test_fork_and_exit(close: bool) -> None:
    ran = run_python("-W", "ignore", "-c", _EXIT.format(close=close))
    assert (ran.returncode, ran.stdout.split()) == (0, ["end"]), ran.stderr


@pytest.fixture
def backend() -> None:
    """Build the backend, because this exceeds the time limit of ranks."""
    from pynccl.c10d.build import build

    build()


@on_ranks(2)
def test_groups_of_torch(rank: Rank, backend: None) -> None:
    import torch
    import torch.distributed as dist

    import pynccl.c10d

    dist.init_process_group(
        "cpu:pynccl,cuda:gloo", init_method=rank.init_method, rank=rank.rank, world_size=2
    )
    group = dist.group.WORLD
    with pytest.raises(ValueError, match="no communicator on this device yet"):
        nccl.Communicator.borrow(group)
    dist.all_reduce(torch.ones(1))
    for owner, device in (
        (group, None),
        (group, "cpu"),
        (group._get_backend(torch.device("cpu")), None),
    ):
        with nccl.Communicator.borrow(owner, device=device) as comm:
            _use(rank, comm)
    with pytest.raises(ValueError, match="gloo, which has no ncclComm_t"):
        nccl.Communicator.borrow(group, device="cuda")
    with pytest.raises(ValueError, match="has no ncclComm_t"):
        nccl.Communicator.borrow(group._get_backend(torch.device("cuda")))
    lent = pynccl.c10d.communicator(group, torch.device("cpu"))
    kept = nccl.Communicator.borrow(group)
    assert kept.handle == lent.handle
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    kept.all_reduce(tensor)
    assert (tensor == 4).all()
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="closed"):
        kept.all_reduce(tensor)


@on_ranks(2)
def test_groups_of_the_mirror(rank: Rank) -> None:
    import torch

    dist = init_on_host(rank, rank.init_method)
    group = dist.new_group([1, 0])
    default = dist.group.WORLD
    for owner in (group, default):
        dist.all_reduce(torch.ones(1), group=owner)
        for device in (None, "cpu", torch.device("cpu")):
            comm = nccl.Communicator.borrow(owner, device=device)
            assert comm.borrowed
            assert comm.handle == dist.get_backend_impl(owner).handle
            check_works(rank, comm, list(range(rank.nranks)))
            comm.close()
        dist.all_reduce(torch.ones(1), group=owner)
        with pytest.raises(ValueError, match="no communicator on this device yet"):
            nccl.Communicator.borrow(owner, device="cuda")
    comm = nccl.Communicator.borrow(group)
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="closed"):
        comm.all_reduce(torch.ones(1))
    with pytest.raises(ValueError, match="no communicator on this device yet"):
        nccl.Communicator.borrow(group)


@pytest.mark.parametrize(
    ("client", "modules"),
    [
        ("lend_nccl4py.py", ("nccl.core",)),
        ("lend_cupy.py", ("cupy",)),
    ],
)
def test_clients(tmp_path: Path, client: str, modules: tuple[str, ...]) -> None:
    """Two ranks of a program that loads hostnccl as libnccl.so.2."""
    for module in modules:
        pytest.importorskip(module)
    assert run_client(client, 2, tmp_path, PYTHONPATH=str(_ROOT)) == ["done", "done"]
