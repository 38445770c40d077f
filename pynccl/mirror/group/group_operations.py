"""The operations of a group as torch's methods, for code that calls them on the group.

Each method begins an operation and returns its Work. Tensors come as torch's methods take them:
alone or in a list of one; options as an Options object or by themselves. Ranks are the group's own.
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
    """The only element of a list, or the tensor itself."""
    if not isinstance(tensors, torch.Tensor):
        if len(tensors) != 1:
            raise ValueError(f"{name}: expected a single tensor, got {len(tensors)}")
        tensors = tensors[0]
    check_tensor(tensors, name)
    return tensors


def _of_lists(tensors: Any, name: str) -> Any:
    """The first list of a list of lists, or the list itself; empty for None."""
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
    """A group with torch's methods that begin operations."""

    def allreduce(self, tensors: _Tensors, opts: Any = ReduceOp.SUM, op: Any = None) -> Work | None:
        """Begin :func:`pynccl.all_reduce`.

        Args:
            tensors: the tensor, alone or in a list of one.
            opts: the ReduceOp, or torch's options with it.
            op: the ReduceOp, in place of opts.

        Returns:
            The Work.
        """
        tensor = _one(tensors, "tensors")
        return operations.all_reduce(self, tensor, _op(opts if op is None else op), True)

    def broadcast(self, tensors: _Tensors, root: Any = 0) -> Work | None:
        """Begin :func:`pynccl.broadcast`.

        Args:
            tensors: the tensor, alone or in a list of one.
            root: the rank that sends, or torch's options with it.

        Returns:
            The Work.
        """
        return operations.broadcast(self, _one(tensors, "tensors"), _root(root), True)

    def reduce(self, tensors: _Tensors, root: Any = 0, op: Any = ReduceOp.SUM) -> Work | None:
        """Begin :func:`pynccl.reduce`.

        Args:
            tensors: the tensor, alone or in a list of one.
            root: the rank that gets the result, or torch's options with it and with the operator.
            op: the ReduceOp, where root is a rank.

        Returns:
            The Work.
        """
        op = getattr(root, "reduceOp", op)
        return operations.reduce(self, _one(tensors, "tensors"), _root(root), op, True)

    def allgather(
        self, output_tensors: Any, input_tensors: _Tensors, opts: Any = None
    ) -> Work | None:
        """Begin :func:`pynccl.all_gather`.

        Args:
            output_tensors: a tensor for each rank, in a list or in a list of one list.
            input_tensors: this rank's tensor, alone or in a list of one.
            opts: without effect.

        Returns:
            The Work.
        """
        outputs = _of_lists(output_tensors, "output_tensors")
        tensor = _one(input_tensors, "input_tensors")
        check_same_dtype([*outputs, tensor])
        return operations.all_gather(self, outputs, tensor, True)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work | None:
        """Begin :func:`pynccl.all_gather_single`; torch's class has it since torch 2.13.

        Args:
            output: the result, with room for the tensors of all ranks.
            input: this rank's tensor.
            opts: without effect.

        Returns:
            The Work.
        """
        check_tensor(output, "output")
        check_tensor(input, "input")
        return operations.all_gather_single(self, output, input, True)

    def gather_single(
        self, output: torch.Tensor, input: torch.Tensor, root: Any = 0
    ) -> Work | None:
        """Begin :func:`pynccl.gather_single`; output is ignored but on the root.

        torch's class has it since torch 2.14, as :attr:`gather_into_tensor`.

        Args:
            output: on the root the result, with room for the tensors of all ranks.
            input: this rank's tensor.
            root: the rank that gets the result, or torch's options with it.

        Returns:
            The Work.
        """
        check_tensor(input, "input")
        if _root(root) != self.rank():
            return operations.gather_single(self, input, None, _root(root), True)
        check_tensor(output, "output")
        check_same_dtype([input, output])
        return operations.gather_single(self, input, output, self.rank(), True)

    gather_into_tensor = gather_single

    def gather(self, output_tensors: Any, input_tensors: _Tensors, root: Any = 0) -> Work | None:
        """Begin :func:`pynccl.gather`.

        Args:
            output_tensors: on the root a tensor for each rank, in a list or in a list of one list;
                elsewhere empty.
            input_tensors: this rank's tensor, alone or in a list of one.
            root: the rank that gets the tensors, or torch's options with it.

        Returns:
            The Work.
        """
        tensor = _one(input_tensors, "input_tensors")
        outputs = _of_lists(output_tensors, "output_tensors")
        check_same_dtype([tensor, *outputs])
        return operations.gather(self, tensor, outputs, _root(root), True)

    def scatter(self, output_tensors: _Tensors, input_tensors: Any, root: Any = 0) -> Work | None:
        """Begin :func:`pynccl.scatter`.

        Args:
            output_tensors: the result, alone or in a list of one.
            input_tensors: on the root a tensor for each rank, in a list or in a list of one list;
                elsewhere empty.
            root: the rank that sends, or torch's options with it.

        Returns:
            The Work.
        """
        tensor = _one(output_tensors, "output_tensors")
        inputs = _of_lists(input_tensors, "input_tensors")
        check_same_dtype([tensor, *inputs])
        return operations.scatter(self, tensor, inputs, _root(root), True)

    def reduce_scatter(
        self, output_tensors: _Tensors, input_tensors: Any, opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Begin :func:`pynccl.reduce_scatter`.

        Args:
            output_tensors: the result, alone or in a list of one.
            input_tensors: a tensor for each rank, in a list or in a list of one list.
            opts: the ReduceOp, or torch's options with it.

        Returns:
            The Work.
        """
        tensor = _one(output_tensors, "output_tensors")
        inputs = _of_lists(input_tensors, "input_tensors")
        check_same_dtype([tensor, *inputs])
        return operations.reduce_scatter(self, tensor, inputs, _op(opts), True)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Begin :func:`pynccl.reduce_scatter_single`; torch's class has it since torch 2.13.

        Args:
            output: the result, this rank's block.
            input: the blocks for all ranks, in one tensor.
            opts: the ReduceOp, or torch's options with it.

        Returns:
            The Work.
        """
        check_tensor(output, "output")
        check_tensor(input, "input")
        return operations.reduce_scatter_single(self, output, input, _op(opts), True)

    def alltoall(
        self,
        output_tensors: list[torch.Tensor],
        input_tensors: list[torch.Tensor],
        opts: Any = None,
    ) -> Work | None:
        """Begin :func:`pynccl.all_to_all`.

        Args:
            output_tensors: what is received from each rank.
            input_tensors: what is sent to each rank.
            opts: without effect.

        Returns:
            The Work.
        """
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
        """Begin :func:`pynccl.all_to_all_single`; torch's class has it since torch 2.13.

        Args:
            output: what is received, in the order of the ranks.
            input: what is sent, in the order of the ranks.
            output_split_sizes: the rows from each rank; None or empty for blocks of equal size.
            input_split_sizes: the rows for each rank; None or empty for blocks of equal size.
            opts: without effect.

        Returns:
            The Work.
        """
        check_tensor(output, "output")
        check_tensor(input, "input")
        return operations.all_to_all_single(
            self, output, input, output_split_sizes, input_split_sizes, True
        )

    def allreduce_coalesced(
        self, tensors: list[torch.Tensor], opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Begin :func:`pynccl.all_reduce_coalesced`.

        Args:
            tensors: the tensors, of one dtype.
            opts: the ReduceOp, or torch's options with it.

        Returns:
            The Work.
        """
        check_tensor_list(tensors, "tensors")
        check_same_dtype(tensors)
        return operations.all_reduce_coalesced(self, tensors, _op(opts), True)

    def allgather_coalesced(
        self,
        output_lists: list[list[torch.Tensor]],
        input_list: list[torch.Tensor],
        opts: Any = None,
    ) -> Work | None:
        """Begin :func:`pynccl.all_gather_coalesced`.

        Args:
            output_lists: for each rank a list of tensors, which are received into.
            input_list: this rank's tensors.
            opts: without effect.

        Returns:
            The Work.
        """
        for tensors in (input_list, *output_lists):
            check_tensor_list(tensors, "output_lists and input_list")
            check_same_dtype(tensors)
        return operations.all_gather_coalesced(self, output_lists, input_list, True)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work | None:
        """Begin :func:`pynccl.all_gather_single` of several pairs of tensors, as one NCCL group.

        torch's class has the name since torch 2.13.

        Args:
            outputs: the results.
            inputs: this rank's tensor for each of the results.
            opts: without effect.

        Returns:
            The Work of all of them.

        Raises:
            ValueError: the lists are not equally long, or the group is inside a coalescing manager;
                and what :func:`pynccl.all_gather_single` raises.
        """
        return self._coalesced(operations.all_gather_single, outputs, inputs)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = ReduceOp.SUM
    ) -> Work | None:
        """Begin :func:`pynccl.reduce_scatter_single` of several pairs, as one NCCL group.

        torch's class has the name since torch 2.13.

        Args:
            outputs: the results.
            inputs: the blocks for all ranks, in one tensor for each of the results.
            opts: the ReduceOp, or torch's options with it.

        Returns:
            The Work of all of them.

        Raises:
            ValueError: the lists are not equally long, or the group is inside a coalescing manager;
                and what :func:`pynccl.reduce_scatter_single` raises.
        """
        return self._coalesced(operations.reduce_scatter_single, outputs, inputs, _op(opts))

    def _coalesced(
        self,
        begin: Callable[..., Work | None],
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        *options: Any,
    ) -> Work | None:
        """Begin an operation on each pair of tensors, as one NCCL group with one Work."""
        check_tensor_list(outputs, "outputs")
        check_tensor_list(inputs, "inputs")
        if len(outputs) != len(inputs):
            raise ValueError(f"outputs: has {len(outputs)} tensors for {len(inputs)} inputs")
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
        """Begin :func:`pynccl.isend`.

        Args:
            tensors: the tensor, alone or in a list of one.
            dst: the rank that receives.
            tag: without effect, as with torch's NCCL backend.

        Returns:
            The Work.
        """
        return p2p.begin(self, True, _one(tensors, "tensors"), dst)

    def recv(self, tensors: _Tensors, src: int, tag: int = 0) -> Work | None:
        """Begin :func:`pynccl.irecv`.

        Args:
            tensors: the tensor that is received into, alone or in a list of one.
            src: the rank that sends.
            tag: without effect, as with torch's NCCL backend.

        Returns:
            The Work.
        """
        return p2p.begin(self, False, _one(tensors, "tensors"), src)

    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> Work | None:
        """Begin :func:`pynccl.irecv` from any source.

        Args:
            tensors: the tensor that is received into, alone or in a list of one.
            tag: without effect, as with torch's NCCL backend.

        Returns:
            The Work, whose ``source_rank()`` is the sender.
        """
        return p2p.begin(self, False, _one(tensors, "tensors"), p2p.source_in(self))

    def barrier(self, opts: Any = None) -> Work | None:
        """Begin :func:`pynccl.barrier`.

        Args:
            opts: without effect.

        Returns:
            The Work.
        """
        return barriers.barrier(self, async_op=True)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Run :func:`pynccl.monitored_barrier`.

        Args:
            timeout: how long to wait; None is the default of the group's backend.
            wait_all_ranks: whether rank 0 names all missing ranks, or the first that it finds.
        """
        barriers.monitored_barrier(self, timeout, wait_all_ranks)
