"""Proves that lend() registers a communicator with torch's symmetric memory, and its errors.

Without a GPU, torch accepts any handle and warns at process exit, so the tests run in the ranks'
processes. The communicators are hostnccl's, which the tests present as torch's libnccl.so.2.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.c10d.in_torch import cpu_communicator
from tests.support.ranks import on_ranks

_distributed_c10d: Any = pytest.importorskip("torch._C._distributed_c10d")


HAS_IT = hasattr(_distributed_c10d, "_register_external_nccl_comm")
needs_it = pytest.mark.skipif(
    not HAS_IT, reason="this torch has no _register_external_nccl_comm: from 2.13 on, with CUDA"
)


@needs_it
@on_ranks(2)
def test_torch_has_the_handle(rank: int, size: int) -> None:
    import pynccl.c10d
    from pynccl._internal import borrowing

    comm, other, world = cpu_communicator(), dist.new_group(), dist.group.WORLD
    device = torch.device("cuda", comm.device)
    begin, end = "_register_external_nccl_comm", "_unregister_external_nccl_comm"
    calls = mock.Mock()
    with (
        mock.patch.object(borrowing, "loaded", return_value=comm.library),
        mock.patch.object(_distributed_c10d, begin, wraps=getattr(_distributed_c10d, begin)) as one,
        mock.patch.object(_distributed_c10d, end, wraps=getattr(_distributed_c10d, end)) as two,
    ):
        calls.attach_mock(one, "begin")
        calls.attach_mock(two, "end")
        with pynccl.c10d.lend(comm):
            lent = pynccl.c10d.lend(comm, other)
        lent.unregister()
        lent.unregister()
    assert calls.mock_calls == [
        mock.call.begin(world.group_name, comm.handle, device),
        mock.call.begin(other.group_name, comm.handle, device),
        mock.call.end(world.group_name, device),
        mock.call.end(other.group_name, device),
    ]
    value = torch.ones(2)
    comm.all_reduce(value)  # torch has not freed it
    assert value.tolist() == [size, size]


@needs_it
@on_ranks(2)
def test_refused(rank: int, size: int) -> None:
    import pynccl.c10d
    from pynccl import nccl
    from pynccl._internal import borrowing

    comm, alone = cpu_communicator(), nccl.Communicator(1, nccl.get_unique_id(), 0)
    with pytest.raises(TypeError, match="comm: expected a Communicator, got int"):
        pynccl.c10d.lend(comm.handle)
    with pytest.raises(ValueError, match=r"comm: uses .*hostnccl.*, but torch uses .*nccl"):
        pynccl.c10d.lend(comm)
    with mock.patch.object(borrowing, "loaded", return_value=comm.library):
        with pytest.raises(ValueError, match=f"rank 0 of 1, but rank {rank} of 2 in the group"):
            pynccl.c10d.lend(alone)
        alone.close()
        with pytest.raises(ValueError, match="comm: the communicator is closed"):
            pynccl.c10d.lend(alone)
        with (
            mock.patch.object(dist, "group", mock.Mock(WORLD=None)),
            pytest.raises(ValueError, match="group: torch's default group is not initialized"),
        ):
            pynccl.c10d.lend(comm)


@pytest.mark.skipif(HAS_IT, reason="this torch has the function")
@on_ranks(2)
def test_torch_without_the_function(rank: int, size: int) -> None:
    import pynccl.c10d

    with pytest.raises(RuntimeError, match=r"lend\(\) needs torch 2\.13 or newer with CUDA"):
        pynccl.c10d.lend(cpu_communicator())
