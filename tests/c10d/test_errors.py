"""Proves that wrong arguments are errors that name the argument, with nothing sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import on_ranks


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (0, 0)])
def test_a_rank_outside_of_the_world(tmp_path: Path, rank: int, size: int) -> None:
    url = (tmp_path / "store").as_uri()
    with pytest.raises(
        ValueError, match=f"rank: {rank} is out of range for a group of size {size}"
    ):
        dist.init_process_group("pynccl", url, rank=rank, world_size=size)
    assert not dist.is_initialized()


@on_ranks(2)
def test_mistakes_name_the_argument(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    ones = torch.ones(4, 4)
    everywhere = [torch.empty(4, 4) for _ in range(size)]
    with pytest.raises(ValueError, match=r"tensor: it is not contiguous: sizes \[4, 2\]"):
        dist.all_reduce(ones[:, :2])
    with pytest.raises(ValueError, match=r"BAND.*no bitwise"):
        dist.all_reduce(torch.ones(1, dtype=torch.int64), dist.ReduceOp.BAND)
    with pytest.raises(TypeError, match="tensor: NCCL cannot reduce dtype Short"):
        dist.all_reduce(torch.ones(1, dtype=torch.int16))
    with pytest.raises(TypeError, match="AVG with Boolean"):
        dist.all_reduce(torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG)
    with pytest.raises(ValueError, match=f"tensor_list: expected {size} tensors, one for each"):
        group.allgather([everywhere[1:]], [ones])
    with pytest.raises(ValueError, match="tensor_list: expected 16 elements, got 1"):
        group.allgather([[torch.empty(1)] * size], [ones])
    with pytest.raises(TypeError, match="tensor_list: it has dtype"):
        group.allgather([[torch.empty(4, 4).double()] * size], [ones])
    with pytest.raises(ValueError, match="output_tensor: expected 32 elements, got 16"):
        group._allgather_base(ones, torch.ones(4, 4))
    with pytest.raises(ValueError, match="input: expected"):
        group._reduce_scatter_base(torch.empty(3), ones)
    with pytest.raises(ValueError, match="src: the group has ranks 0 to 1"):
        group.broadcast(ones, 7)
    with pytest.raises(TypeError, match="output: it has dtype"):
        group.alltoall_base(ones.double(), ones, [], [])
    with pytest.raises(ValueError, match="split sizes must add up to its first dimension"):
        dist.all_to_all_single(torch.empty(4, 4), ones, [1, 3], [1, 1])
    pixels = torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last)  # another order in memory
    images = [torch.empty(2, 3, 2, 2) for _ in range(size)]
    with pytest.raises(ValueError, match=r"tensor_list: it has strides \[12, 4, 2, 1\], but other"):
        dist.all_gather(images, pixels)
    with pytest.raises(ValueError, match=r"output: .* or all channels-last"):
        group._reduce_scatter_base(torch.empty(1, 3, 2, 2), pixels)
    flat = torch.empty(24 * size)
    group._allgather_base(flat, pixels).wait()
    assert flat.sum().item() == 24.0 * size
    dist.all_reduce(pixels)
    assert pixels.sum().item() == 24.0 * size
    dist.all_reduce(ones)  # nothing was sent before
    assert ones[0, 0].item() == float(size)
