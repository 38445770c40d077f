"""ProcessGroup: a group with torch's methods, for code that calls them on the group."""

from __future__ import annotations

import torch
from torch.distributed.distributed_c10d import Store

from pynccl import _C, nccl
from pynccl.mirror.base.operators import OPERATORS
from pynccl.mirror.group.group_operations import GroupOperations

__all__ = ["ProcessGroup"]


class ProcessGroup(GroupOperations):
    """Some of the ranks, which can communicate with each other: torch.distributed.ProcessGroup.

    :func:`pynccl.init_process_group`, :func:`pynccl.new_group` and :func:`pynccl.split_group` make
    it; programs do not. Each method named after an operation begins it and returns its
    :class:`Work`; the function of the same name in :mod:`pynccl` says what the operation does and
    which errors it raises. A rank in an argument is a rank of the group. ``opts`` is torch's object
    of options for the operation, of which ``reduceOp`` and ``rootRank`` are used, or that value
    itself.

    Args:
        job: that of the ranks; the group uses its store below a prefix of its own.
        ranks: the global ranks, in the order of the group.
        rank: this process's rank in the group; -1 where it is not in it.
        name: unique in the job.
        config: the backends.
        timeout: of the exchange of unique ids and of each operation.
        options: of the communicators.
        desc: what the group is for, in words.
        device_id: the device of this rank.
    """

    def name(self) -> str:
        """The backend.

        Returns:
            Its name, as ``"host"``, ``"nccl"`` or ``"cpu:host,cuda:nccl"``.
        """
        return self.config.name

    def get_backend(self, device: torch.device | None = None) -> nccl.Communicator:
        """The communicator for a device: see :func:`pynccl.get_backend_impl`.

        A device of None is the device that the group is bound to, or the only one that it has a
        backend for. torch's class has it since torch 2.14.
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
        """The store that only this group uses.

        Returns:
            A ``PrefixStore`` over the store of all groups.
        """
        return self.store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self.config.device_backend_map]


_C.set_group_classes(torch.Tensor, ProcessGroup, list(OPERATORS.items()))
