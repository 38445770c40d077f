"""Hooks on the operations of one group, in the form of torch's ProcessGroup since torch 2.14."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from pynccl.mirror.group.comm_stream import CommStream
from pynccl.mirror.group.hooks import OperationHooks, add_operation_hooks
from pynccl.mirror.group.record import OperationRecord
from pynccl.mirror.group.work import Work

__all__ = ["GroupHooks", "PostHookArgs", "PreHookArgs"]

_RECEIVES = ("recv",)


class PreHookArgs(NamedTuple):
    """What is known before an operation is issued.

    Attributes:
        name: of the operation: ``"all_reduce"``.
        async_op: whether it has a Work.
        input_tensors: the tensors that it reads.
        output_tensors: the tensors that it writes.
        root: the root of a rooted collective or the peer of a transfer, as a rank of the
            communicator; -1 for others.
        op_id: counts the operations of the group, from 0; the same for both hooks.
    """

    name: str
    async_op: bool
    input_tensors: list[torch.Tensor]
    output_tensors: list[torch.Tensor]
    root: int
    op_id: int


class PostHookArgs(NamedTuple):
    """What is known after an operation was issued.

    Attributes:
        name: of the operation.
        async_op: whether it has a Work.
        work: the Work of an asynchronous operation, else None.
        op_id: that of the PreHookArgs.
    """

    name: str
    async_op: bool
    work: Work | None
    op_id: int


Hook: TypeAlias = Callable[..., object]


class GroupHooks:
    """The hooks of a group, by kind ("pre", "post", "abort") and number.

    Args:
        group_name: of the group.
    """

    def __init__(self, group_name: str) -> None:
        self._group_name = group_name
        self._hooks: dict[str, dict[int, Hook]] = {"pre": {}, "post": {}, "abort": {}}
        self._registered: OperationHooks | None = None
        self._ids: dict[int, int] = {}  # of operations under way, by the address of their record
        self._count = itertools.count()

    def add(self, kind: str, hook_id: int, hook: Hook) -> None:
        """Add a hook, or replace that of the same kind and number.

        Raises:
            TypeError: hook_id is no integer, or hook cannot be called.
        """
        if not isinstance(hook_id, int):
            raise TypeError(f"hook_id: expected an integer, got {hook_id!r}")
        if not callable(hook):
            raise TypeError(f"hook: expected a function, got {hook!r}")
        self._hooks[kind][hook_id] = hook
        if self._registered is None:
            self._registered = add_operation_hooks(self._before, self._after, self._on_abort)

    def remove(self, kind: str, hook_id: int) -> None:
        """Remove a hook; one that is not there is ignored."""
        self._hooks[kind].pop(hook_id, None)
        if self._registered is not None and not any(self._hooks.values()):
            self._registered.remove()
            self._registered = None
            self._ids.clear()

    def _is_ours(self, comm_stream: object) -> bool:
        return getattr(comm_stream, "group_name", None) == self._group_name

    def _before(self, record: OperationRecord) -> None:
        if not self._is_ours(record.comm_stream):
            return
        op_id = self._ids[id(record)] = next(self._count)
        first = record.calls[0].root_or_peer
        inputs = [call.tensor for call in record.calls if call.method not in _RECEIVES]
        args = PreHookArgs(
            record.kind,
            record.async_op,
            inputs,
            list(record.result),
            -1 if first is None else first,
            op_id,
        )
        for hook in list(self._hooks["pre"].values()):
            hook(args)

    def _after(
        self, record: OperationRecord, work: Work | None, error: BaseException | None
    ) -> None:
        op_id = self._ids.pop(id(record), None)
        if op_id is None or error is not None:
            return
        args = PostHookArgs(record.kind, record.async_op, work, op_id)
        for hook in list(self._hooks["post"].values()):
            hook(args)

    def _on_abort(self, comm_stream: CommStream, _reason: str) -> None:
        if self._is_ours(comm_stream):
            for hook in list(self._hooks["abort"].values()):
                hook()
