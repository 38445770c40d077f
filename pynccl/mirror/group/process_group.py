"""ProcessGroup: a group with torch's methods, for code that calls them on the group."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from pynccl import _C, nccl
from pynccl.mirror.base.operators import OPERATORS
from pynccl.mirror.group.group_hooks import GroupHooks, PostHookArgs, PreHookArgs
from pynccl.mirror.group.group_operations import GroupOperations
from pynccl.mirror.group.work import Work

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
        store: common to all groups; the group uses it below a prefix of its own.
        peers: exchanges unique ids between two ranks, without the store.
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

    @property
    def supports_abort_hooks(self) -> bool:
        """True: :meth:`register_abort_hook`; torch's class has it since torch 2.15."""
        return True

    @property
    def supports_completion_hooks(self) -> bool:
        """False: no hooks at an operation's end; torch's class has it since torch 2.15."""
        return False

    @property
    def supports_window(self) -> bool:
        """False: windows are methods of :func:`pynccl.get_backend_impl`'s Communicator.

        torch's class has it since torch 2.14.
        """
        return False

    def register_pre_hook(self, hook_id: int, hook: Callable[[PreHookArgs], object]) -> None:
        """Call a function before each operation of the group is issued.

        It runs in the thread that issues the operation, and must not issue any itself. Its argument
        has ``name``, ``async_op``, ``input_tensors``, ``output_tensors``, ``root`` and ``op_id``.
        An exception in it goes to ``sys.unraisablehook``. torch's class has it since torch 2.14.
        """
        self._group_hooks.add("pre", hook_id, hook)

    def unregister_pre_hook(self, hook_id: int) -> None:
        """Undo :meth:`register_pre_hook`; torch's class has it since torch 2.14.

        Args:
            hook_id: that of the hook; a number without a hook is ignored.
        """
        self._group_hooks.remove("pre", hook_id)

    def register_post_hook(self, hook_id: int, hook: Callable[[PostHookArgs], object]) -> None:
        """Call a function after each operation of the group was issued without an error.

        Its argument has ``name``, ``async_op``, ``work`` and ``op_id``. The rest is as for
        :meth:`register_pre_hook`; torch's class has it since torch 2.14.
        """
        self._group_hooks.add("post", hook_id, hook)

    def unregister_post_hook(self, hook_id: int) -> None:
        """Undo :meth:`register_post_hook`; torch's class has it since torch 2.14.

        Args:
            hook_id: that of the hook; a number without a hook is ignored.
        """
        self._group_hooks.remove("post", hook_id)

    def register_abort_hook(self, hook_id: int, hook: Callable[[], object]) -> None:
        """Call a function before a communicator of the group is aborted, in any thread.

        It takes no argument. That is after a timeout, or because the group is aborted. The rest is
        as for :meth:`register_pre_hook`; torch's class has it since torch 2.14.
        """
        self._group_hooks.add("abort", hook_id, hook)

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Undo :meth:`register_abort_hook`; torch's class has it since torch 2.14.

        Args:
            hook_id: that of the hook; a number without a hook is ignored.
        """
        self._group_hooks.remove("abort", hook_id)

    @functools.cached_property
    def _group_hooks(self) -> GroupHooks:
        return GroupHooks(self.group_name)

    @property
    def supports_reconfigure(self) -> bool:
        """Whether :meth:`reconfigure` can be called; torch's class has it since torch 2.14."""
        return self.reconfigurer is not None

    def get_reconfigure_handle(self) -> str:
        """See :func:`pynccl._get_reconfigure_handle`. torch's class has it since torch 2.14."""
        return json.dumps(self.peers.address)

    def reconfigure(self, opts: Any) -> Work:
        """See :func:`pynccl._reconfigure`. torch's class has it since torch 2.14."""
        if self.reconfigurer is None:
            raise RuntimeError(
                "reconfigure: the process group was not made with "
                "init_process_group(enable_reconfigure=True)"
            )
        return self.reconfigurer(self, opts)

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
