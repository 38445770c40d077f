"""The operations as methods of a group, for code that calls them there.

Each begins the operation and returns its Work. Tensors come as torch's methods take them: alone or
in a list of one, and options as an Options object or by themselves. Ranks are the group's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.distributed import ReduceOp

if TYPE_CHECKING:
    from pynccl.mirror.work import Work

__all__ = ["Methods"]

_Tensors: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"


def _one(tensors: Any, name: str) -> Any:
    """The only element of a list, or the tensor itself."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{name}: expected a single tensor, got {len(tensors)}")
    return tensors[0]


def _of_lists(tensors: Any) -> Any:
    """The only list of a list of lists, or the list itself; None for an empty one."""
    if tensors and not isinstance(tensors[0], torch.Tensor):
        return tensors[0]
    return tensors or None


def _op(given: Any) -> Any:
    return getattr(given, "reduceOp", given)


def _root(given: Any) -> int:
    return getattr(given, "rootRank", given)


class Methods:
    """What :class:`pynccl.ProcessGroup` inherits."""

    def allreduce(self: Any, tensors: _Tensors, opts: Any = ReduceOp.SUM, op: Any = None) -> Work:
        """Begin :func:`pynccl.all_reduce`."""
        from pynccl.mirror.collectives import all_reduce

        tensor = _one(tensors, "tensors")
        return all_reduce(tensor, _op(opts if op is None else op), self, async_op=True)

    def broadcast(self: Any, tensors: _Tensors, root: Any = 0) -> Work:
        """Begin :func:`pynccl.broadcast`."""
        from pynccl.mirror.collectives import broadcast

        tensor = _one(tensors, "tensors")
        return broadcast(tensor, group=self, async_op=True, group_src=_root(root))

    def reduce(self: Any, tensors: _Tensors, root: Any = 0, op: Any = ReduceOp.SUM) -> Work:
        """Begin :func:`pynccl.reduce`."""
        from pynccl.mirror.collectives import reduce

        op = getattr(root, "reduceOp", op)
        tensor = _one(tensors, "tensors")
        return reduce(tensor, op=op, group=self, async_op=True, group_dst=_root(root))

    def allgather(
        self: Any, output_tensors: Any, input_tensors: _Tensors, opts: Any = None
    ) -> Work:
        """Begin :func:`pynccl.all_gather`."""
        from pynccl.mirror.lists import all_gather

        return all_gather(
            _of_lists(output_tensors), _one(input_tensors, "input_tensors"), self, async_op=True
        )

    def all_gather_single(
        self: Any, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Begin :func:`pynccl.all_gather_single`."""
        from pynccl.mirror.collectives import all_gather_single

        return all_gather_single(output, input, self, async_op=True)

    def gather(self: Any, output_tensors: Any, input_tensors: _Tensors, root: Any = 0) -> Work:
        """Begin :func:`pynccl.gather`."""
        from pynccl.mirror.lists import gather

        tensor = _one(input_tensors, "input_tensors")
        outputs = _of_lists(output_tensors)
        return gather(tensor, outputs, group=self, async_op=True, group_dst=_root(root))

    def scatter(self: Any, output_tensors: _Tensors, input_tensors: Any, root: Any = 0) -> Work:
        """Begin :func:`pynccl.scatter`."""
        from pynccl.mirror.lists import scatter

        tensor = _one(output_tensors, "output_tensors")
        inputs = _of_lists(input_tensors)
        return scatter(tensor, inputs, group=self, async_op=True, group_src=_root(root))

    def reduce_scatter(
        self: Any, output_tensors: _Tensors, input_tensors: Any, opts: Any = ReduceOp.SUM
    ) -> Work:
        """Begin :func:`pynccl.reduce_scatter`."""
        from pynccl.mirror.lists import reduce_scatter

        tensor = _one(output_tensors, "output_tensors")
        return reduce_scatter(tensor, _of_lists(input_tensors), _op(opts), self, async_op=True)

    def reduce_scatter_single(
        self: Any, output: torch.Tensor, input: torch.Tensor, opts: Any = ReduceOp.SUM
    ) -> Work:
        """Begin :func:`pynccl.reduce_scatter_single`."""
        from pynccl.mirror.collectives import reduce_scatter_single

        return reduce_scatter_single(output, input, _op(opts), self, async_op=True)

    def alltoall(
        self: Any,
        output_tensors: list[torch.Tensor],
        input_tensors: list[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """Begin :func:`pynccl.all_to_all`."""
        from pynccl.mirror.exchange import all_to_all

        return all_to_all(output_tensors, input_tensors, self, async_op=True)

    def all_to_all_single(
        self: Any,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Work:
        """Begin :func:`pynccl.all_to_all_single`."""
        from pynccl.mirror.exchange import all_to_all_single

        return all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, self, async_op=True
        )

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def send(self: Any, tensors: _Tensors, dst: int, tag: int = 0) -> Work | None:
        """Begin :func:`pynccl.isend`."""
        from pynccl.mirror.p2p import isend

        return isend(_one(tensors, "tensors"), group=self, tag=tag, group_dst=dst)

    def recv(self: Any, tensors: _Tensors, src: int, tag: int = 0) -> Work | None:
        """Begin :func:`pynccl.irecv`."""
        from pynccl.mirror.p2p import irecv

        return irecv(_one(tensors, "tensors"), group=self, tag=tag, group_src=src)

    def recv_anysource(self: Any, tensors: _Tensors, tag: int = 0) -> Work | None:
        """Begin :func:`pynccl.irecv` from any source."""
        from pynccl.mirror.p2p import irecv

        return irecv(_one(tensors, "tensors"), group=self, tag=tag)

    def barrier(self: Any, opts: Any = None) -> Work:
        """Begin :func:`pynccl.barrier`."""
        from pynccl.mirror.barriers import barrier

        return barrier(self, async_op=True)

    def monitored_barrier(
        self: Any, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Run :func:`pynccl.monitored_barrier`."""
        from pynccl.mirror.barriers import monitored_barrier

        monitored_barrier(self, timeout, wait_all_ranks)
