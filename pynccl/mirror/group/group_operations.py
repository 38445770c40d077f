"""A group's operations as the methods of torch's ProcessGroup.

Each method starts an operation and returns its Work. As in torch, a tensor can be passed directly
or in a list of one, and options directly or in an Options object. Ranks are group ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch

from pynccl.mirror.base.checks import check_same_dtype, check_tensor, check_tensor_list
from pynccl.mirror.base.operators import ReduceOp
from pynccl.mirror.group import barriers, operations, p2p
from pynccl.mirror.group.base_group import BaseGroup
from pynccl.mirror.group.batch import Batch
from pynccl.mirror.group.work import Work

__all__ = ["GroupOperations"]

_Tensors: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"


def _one(tensors: Any, name: str) -> Any:
    """Return the only element of a list, or the tensor itself."""
    if not isinstance(tensors, torch.Tensor):
        if len(tensors) != 1:
            raise ValueError(f"{name}: expected a single tensor, got {len(tensors)}")
        tensors = tensors[0]
    check_tensor(tensors, name)
    return tensors


def _of_lists(tensors: Any, name: str) -> Any:
    """Return the first list of a list of lists, or the list itself; empty for None."""
    if tensors and not isinstance(tensors[0], torch.Tensor):
        tensors = tensors[0]
    if not tensors:
        return []
    check_tensor_list(tensors, name)
    return tensors


def _op(given: Any) -> Any:
    return getattr(given, "reduceOp", given)


def _root(given: Any) -> int:
    return getattr(given, "rootRank", given)


class GroupOperations(BaseGroup):
    """A group with torch's methods that start operations."""

    def allreduce(self, tensors: _Tensors, opts: Any = ReduceOp.SUM, op: Any = None) -> Work | None:
        """Begin :func:`pynccl.all_reduce`."""
        tensor = _one(tensors, "tensors")
        return operations.all_reduce(self, tensor, _op(opts if op is None else op), True)

    def broadcast(self, tensors: _Tensors, root: Any = 0) -> Work | None:
        """Begin :func:`pynccl.broadcast`."""
        return operations.broadcast(self, _one(tensors, "tensors"), _root(root), True)

    def reduce(self, tensors: _Tensors, root: Any = 0, op: Any = ReduceOp.SUM) -> Work | None:
        """Begin :func:`pynccl.reduce`."""
        op = getattr(root, "reduceOp", op)
        return operations.reduce(self, _one(tensors, "tensors"), _root(root), op, True)

    def allgather(
        self, output_tensors: Any, input_tensors: _Tensors, opts: Any = None
    ) -> Work | None:
        """Begin :func:`pynccl.all_gather`."""
        outputs = _of_lists(output_tensors, "output_tensors")
        tensor = _one(input_tensors, "input_tensors")
        check_same_dtype([*outputs, tensor])
        return operations.all_gather(self, outputs, tensor, True)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work | None:
        """Start :func:`pynccl.all_gather_single`. Available since torch 2.13."""
        check_tensor(output, "output")
        check_tensor(input, "input")
        return operations.all_gather_single(self, output, input, True)

    def gather_single(
        self, output: torch.Tensor, input: torch.Tensor, root: Any = 0
    ) -> Work | None:
        """Start :func:`pynccl.gather_single`.

        Available since torch 2.14, as :attr:`gather_into_tensor`.
        """
        check_tensor(input, "input")
        if _root(root) != self.rank():
            return operations.gather_single(self, input, None, _root(root), True)
        check_tensor(output, "output")
        check_same_dtype([input, output])
        return operations.gather_single(self, input, output, self.rank(), True)

    gather_into_tensor = gather_single

    def gather(self, output_tensors: Any, input_tensors: _Tensors, root: Any = 0) -> Work | None:
        """Begin :func:`pynccl.gather`."""
        tensor = _one(input_tensors, "input_tensors")
        outputs = _of_lists(output_tensors, "output_tensors")
        check_same_dtype([tensor, *outputs])
        return operations.gather(self, tensor, outputs, _root(root), True)

    def scatter(self, output_tensors: _Tensors, input_tensors: Any, root: Any = 0) -> Work | None:
        """Begin :func:`pynccl.scatter`."""
        tensor = _one(output_tensors, "output_tensors")
        inputs = _of_lists(input_tensors, "input_tensors")
        check_same_dtype([tensor, *inputs])
        return operations.scatter(self, tensor, inputs, _root(root), True)

    def reduce_scatter(
        self, output_tensors: _Tensors, input_tensors: Any, opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Begin :func:`pynccl.reduce_scatter`."""
        tensor = _one(output_tensors, "output_tensors")
        inputs = _of_lists(input_tensors, "input_tensors")
        check_same_dtype([tensor, *inputs])
        return operations.reduce_scatter(self, tensor, inputs, _op(opts), True)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Start :func:`pynccl.reduce_scatter_single`. Available since torch 2.13."""
        check_tensor(output, "output")
        check_tensor(input, "input")
        return operations.reduce_scatter_single(self, output, input, _op(opts), True)

    def alltoall(
        self,
        output_tensors: list[torch.Tensor],
        input_tensors: list[torch.Tensor],
        opts: Any = None,
    ) -> Work | None:
        """Begin :func:`pynccl.all_to_all`."""
        check_tensor_list(output_tensors, "output_tensors")
        check_tensor_list(input_tensors, "input_tensors")
        return operations.all_to_all(self, output_tensors, input_tensors, True)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work | None:
        """Start :func:`pynccl.all_to_all_single`. Available since torch 2.13."""
        check_tensor(output, "output")
        check_tensor(input, "input")
        return operations.all_to_all_single(
            self, output, input, output_split_sizes, input_split_sizes, True
        )

    def allreduce_coalesced(
        self, tensors: list[torch.Tensor], opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Begin :func:`pynccl.all_reduce_coalesced`."""
        check_tensor_list(tensors, "tensors")
        check_same_dtype(tensors)
        return operations.all_reduce_coalesced(self, tensors, _op(opts), True)

    def allgather_coalesced(
        self,
        output_lists: list[list[torch.Tensor]],
        input_list: list[torch.Tensor],
        opts: Any = None,
    ) -> Work | None:
        """Begin :func:`pynccl.all_gather_coalesced`."""
        for tensors in (input_list, *output_lists):
            check_tensor_list(tensors, "output_lists and input_list")
            check_same_dtype(tensors)
        return operations.all_gather_coalesced(self, output_lists, input_list, True)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work | None:
        """Start :func:`pynccl.all_gather_single` of several pairs of tensors, as one NCCL group.

        It raises ValueError inside a coalescing manager. torch's class has the name since torch
        2.13.
        """
        return self._coalesced(operations.all_gather_single, outputs, inputs)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Start :func:`pynccl.reduce_scatter_single` of several pairs, as one NCCL group.

        It raises ValueError inside a coalescing manager. torch's class has the name since torch
        2.13.
        """
        return self._coalesced(operations.reduce_scatter_single, outputs, inputs, _op(opts))

    def _coalesced(
        self,
        begin: Callable[..., Work | None],
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        *options: Any,
    ) -> Work | None:
        """Start an operation on each pair of tensors, as one NCCL group with one Work."""
        check_tensor_list(outputs, "outputs")
        check_tensor_list(inputs, "inputs")
        if len(outputs) != len(inputs):
            raise ValueError(f"outputs: {len(outputs)} tensors for {len(inputs)} inputs")
        if self._batch is not None:
            raise ValueError("ProcessGroup has non-empty op list at the start of coalescing")
        batch = self._batch = Batch(takes_all_kinds=False)
        try:
            for output, sent in zip(outputs, inputs, strict=True):
                begin(self, output, sent, *options)
        finally:
            self._batch = None
        record = batch.coalesced(True)
        return None if record is None else self.issue(record)

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def send(self, tensors: _Tensors, dst: int, tag: int = 0) -> Work | None:
        """Begin :func:`pynccl.isend`."""
        return p2p.begin(self, True, _one(tensors, "tensors"), dst)

    def recv(self, tensors: _Tensors, src: int, tag: int = 0) -> Work | None:
        """Begin :func:`pynccl.irecv`."""
        return p2p.begin(self, False, _one(tensors, "tensors"), src)

    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> Work | None:
        """Start :func:`pynccl.irecv` from any source, which the Work's source_rank() returns."""
        return p2p.begin(self, False, _one(tensors, "tensors"), p2p.source_in(self))

    def barrier(self, opts: Any = None) -> Work | None:
        """Begin :func:`pynccl.barrier`."""
        return barriers.barrier(self, async_op=True)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """See :func:`pynccl.monitored_barrier`.

        Args:
            timeout: how long to wait; None is the default of the group's backend.
            wait_all_ranks: whether rank 0 reports all missing ranks, or only the first.
        """
        barriers.monitored_barrier(self, timeout, wait_all_ranks)
