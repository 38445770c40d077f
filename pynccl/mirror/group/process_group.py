"""ProcessGroup: a group as the functions of the mirror return it."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import Store

from pynccl import _C, nccl
from pynccl.mirror.base.operators import OPERATORS
from pynccl.mirror.group import barriers
from pynccl.mirror.group.base_group import BaseGroup

__all__ = ["ProcessGroup"]


class ProcessGroup(BaseGroup):
    """See torch.distributed.ProcessGroup. A group of ranks that communicate with each other.

    Created by :func:`pynccl.init_process_group`, :func:`pynccl.new_group` and
    :func:`pynccl.split_group`, not by programs. Operations are functions of :mod:`pynccl` that take
    the group, for example ``pynccl.all_reduce(tensor, group=group)``.

    Args:
        job: the job of the ranks; the group uses a prefix of its store.
        ranks: the global ranks, in group order.
        rank: this process's rank in the group; -1 if it is not a member.
        name: a name that is unique in the job.
        config: the backends.
        timeout: the timeout of the unique id exchange and of each operation.
        options: the options of the communicators.
        desc: a description of the group.
        device_id: the device of this rank.
    """

    def name(self) -> str:
        """Return the name of the backend.

        Returns:
            ``"host"``, ``"nccl"`` or ``"cpu:host,cuda:nccl"``.
        """
        return self.config.name

    def get_backend(self, device: torch.device | None = None) -> nccl.Communicator:
        """Return the communicator for a device: see :func:`pynccl.get_backend_impl`.

        A device of None is the device that the group is bound to, or the only one that it has a
        backend for. Available since torch 2.14.
        """
        if device is None:
            kinds = list(self.config.device_backend_map)
            if self.bound_device_id is None and len(kinds) > 1:
                raise ValueError(
                    "device: the process group has multiple backend implementations, for "
                    f"{' and '.join(kinds)}; pass the device to select one"
                )
            device = self.bound_device_id or torch.device(kinds[0])
        return self.comm_stream(device).comm

    def get_group_store(self) -> Store:
        """Return the store of this group.

        Returns:
            A ``PrefixStore`` over the store of the job.
        """
        return self.store

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """See :func:`pynccl.monitored_barrier`.

        Args:
            timeout: how long to wait; None is the default of the group's backend.
            wait_all_ranks: whether rank 0 reports all missing ranks, or only the first.
        """
        barriers.monitored_barrier(self, timeout, wait_all_ranks)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.config.device_backend_map]


_C.set_group_classes(torch.Tensor, ProcessGroup, list(OPERATORS.items()))
