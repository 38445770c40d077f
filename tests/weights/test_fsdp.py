"""DTensors of FSDP2 are sent as shards, and receivers assemble them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from pynccl.testing import Rank
from pynccl.weights import Shard, WeightReceiver, WeightSender
from tests.support.launcher import Launcher
from tests.support.store import FolderStore
from tests.weights import models

TRAINERS = 3


def build() -> nn.Sequential:
    torch.manual_seed(0)
    # Uneven: 3 ranks have rows of 7 and 10, and the last one has none of the bias of 2.
    return nn.Sequential(nn.Linear(20, 7), nn.Linear(7, 10), nn.Linear(10, 2))


def take_part(rank: Rank, folder: str) -> bool:
    store = FolderStore(folder)
    if rank.rank < TRAINERS:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor

        warnings.simplefilter("ignore")
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/gloo", rank=rank.rank, world_size=TRAINERS
        )
        model = build()
        fully_shard(model, mesh=init_device_mesh("cpu", (TRAINERS,)))
        parameters = dict(model.named_parameters())
        assert all(isinstance(parameter, DTensor) for parameter in parameters.values())
        with WeightSender(
            store, rank=rank.rank, senders=TRAINERS, receivers=2, timeout=60
        ) as sender:
            sender.send(parameters)
            sender.send(parameters)
        dist.destroy_process_group()
        return True
    expected = dict(build().named_parameters())
    if rank.rank == TRAINERS:
        target = build()
        with torch.no_grad():
            for parameter in target.parameters():
                parameter.zero_()
        with WeightReceiver(store, dict(target.named_parameters()), timeout=60) as receiver:
            assert len(list(receiver)) == 2
        return models.equal(dict(target.named_parameters()), expected)
    # The columns from 5 on of one parameter, and no other.
    columns = torch.zeros(7, 15)
    into = {"0.weight": Shard(columns, (7, 20), (0, 5))}
    with WeightReceiver(store, into, timeout=60) as receiver:
        assert len(list(receiver)) == 2
    return torch.equal(columns, expected["0.weight"][:, 5:])


def test_fsdp(launch: Launcher, tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    # Importing FSDP takes long on a busy machine.
    ranks = launch(TRAINERS + 2, take_part, str(tmp_path), ids=0, fresh=True, timeout=120)
    assert ranks == [True] * 5
