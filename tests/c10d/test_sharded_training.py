"""Proves that FSDP1, FSDP2, tensor parallelism on a 2-D mesh, redistribution of uneven DTensors and
distributed checkpoints give the same results over the backend as over gloo, with 2 and 4 ranks.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tests.c10d.training import (
    SIZES,
    Values,
    World,
    batches,
    check_same_as_over_gloo,
    make_model,
    train,
    values,
)
from tests.support.tier import FULL

_SQUARE = (2, 4) if FULL else (4,)  # two dimensions of a mesh


def _shard(model: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None) -> None:
    options = {"mesh": mesh, "mp_policy": policy or MixedPrecisionPolicy()}
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    fully_shard(model, **options)


def _fsdp1(rank: int, size: int, strategy: str) -> Values:
    shape = (2, size // 2) if strategy == "HYBRID_SHARD" else (size,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    model = FullyShardedDataParallel(
        make_model(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        sharding_strategy=ShardingStrategy[strategy],
        device_mesh=mesh,
        device_id=torch.device("cpu"),
    )
    train(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        return values(model.parameters())


# Over a mesh with one shard torch does not average between the replicas.
@pytest.mark.parametrize(
    ("nranks", "strategy"),
    [(2, "FULL_SHARD"), (2, "SHARD_GRAD_OP"), (4, "HYBRID_SHARD")] + [(4, "FULL_SHARD")] * FULL,
)
def test_fsdp1(torch_world: World, nranks: int, strategy: str) -> None:
    check_same_as_over_gloo(torch_world, nranks, _fsdp1, strategy)


def _fsdp2(rank: int, size: int, shape: tuple[int, ...], policy: MixedPrecisionPolicy) -> Values:
    model = make_model()
    names = ("replicate", "shard")[-len(shape) :]
    _shard(model, init_device_mesh("cpu", shape, mesh_dim_names=names), policy)
    train(model, rank)
    return values(model.parameters())


# In one dimension: test_allocation.py.
@pytest.mark.parametrize("shape", [(2, 2), (2,), (4,), (2, 1)] if FULL else [(2, 2)])
def test_fsdp2(torch_world: World, shape: tuple[int, ...]) -> None:
    nranks = math.prod(shape)
    check_same_as_over_gloo(torch_world, nranks, _fsdp2, shape, MixedPrecisionPolicy())


@pytest.mark.parametrize("nranks", SIZES)
def test_fsdp2_with_mixed_precision(torch_world: World, nranks: int) -> None:
    # The loss is float32: torch 2.11 has no gradient for mixed dtypes.
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    # Gradients are summed in float32, but parameters that differ in a bit of float32 may round to
    # different bfloat16 values.
    check_same_as_over_gloo(torch_world, nranks, _fsdp2, (nranks,), policy, tolerance=1e-3)


def _tensor_parallel(_rank: int, size: int) -> Values:
    """One dimension of the mesh splits the layers, the other is FSDP2's."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "model"))
    model = make_model(hidden=32)
    plan = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(),
        "4": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["model"], plan)
    _shard(model, mesh["data"])
    train(model, mesh["data"].get_local_rank())
    return values(model.parameters())


@pytest.mark.parametrize("nranks", _SQUARE)
def test_tensor_parallel_on_a_mesh(torch_world: World, nranks: int) -> None:
    check_same_as_over_gloo(torch_world, nranks, _tensor_parallel)


_SIZES = [(7, 5), (1, 3), (5, 9)]  # not divisible; some ranks have nothing


def _redistributed(_rank: int, size: int) -> Values:
    mesh = init_device_mesh("cpu", (size,))
    square = init_device_mesh("cpu", (size // 2, 2))
    found = []
    for rows, columns in _SIZES:
        whole = torch.arange(1.0, rows * columns + 1).reshape(rows, columns)
        ways = [[Shard(0)], [Shard(1)], [Replicate()], [Shard(0)], [Replicate()], [Shard(1)]]
        of_square = [[Shard(0), Shard(1)], [Shard(1), Replicate()], [Shard(0), Shard(0)]]
        partial = DTensor.from_local(whole * (mesh.get_local_rank() + 1), mesh, [Partial()])
        total = size * (size + 1) // 2
        for placement in (Shard(0), Shard(1), Replicate()):
            summed = partial.redistribute(placements=[placement])
            found.append(summed.to_local())
            assert torch.equal(summed.full_tensor(), whole * total)
        for grid, steps in ((mesh, ways), (square, of_square)):
            tensor = distribute_tensor(whole, grid, steps[0])
            for placements in steps[1:]:
                tensor = tensor.redistribute(placements=placements)
                found.append(tensor.to_local())
                assert torch.equal(tensor.full_tensor(), whole)
    return values(found)


@pytest.mark.parametrize("nranks", _SQUARE)
def test_redistribution_of_uneven_shards(torch_world: World, nranks: int) -> None:
    check_same_as_over_gloo(torch_world, nranks, _redistributed, tolerance=0, alike=False)


def _save(rank: int, size: int, folder: str) -> Values:
    model = make_model()
    _shard(model, init_device_mesh("cpu", (size,)))
    train(model, rank)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    return values(model.parameters())


def _load(_rank: int, size: int, folder: str) -> Values:
    """Load on a mesh of replicas and shards, which may have a different number of ranks."""
    shape = (2, size // 2)
    model = make_model()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    _shard(model, init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    whole = values(model.parameters())
    output = [model(inputs) for inputs, _ in batches(0, steps=1)]
    assert torch.isfinite(output[0]).all()
    dist.barrier()
    return whole


@pytest.mark.parametrize("nranks", SIZES)
def test_checkpoints(torch_world: World, tmp_path: Path, nranks: int) -> None:
    """A checkpoint saved over one backend is loaded over both, on different numbers of ranks."""
    loaders = {
        "pynccl": [(2, "pynccl"), (4, "pynccl"), (2, "gloo")],
        "gloo": [(6 - nranks, "pynccl")],
    }
    for backend, others in loaders.items():
        folder = str(tmp_path / backend)
        saved = torch_world(nranks, _save, folder, init={"backend": backend})[0]
        for other, by in others:
            assert torch_world(other, _load, folder, init={"backend": by}) == [saved] * other
