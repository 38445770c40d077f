"""SGLang's PyNcclCommunicator over pynccl, on GPUs and on CPUs.

    from sglang.srt.distributed.device_communicators import pynccl as wrapper

    from pynccl.compat.sglang import PyNcclCommunicator

    wrapper.PyNcclCommunicator = PyNcclCommunicator  # before SGLang creates its groups

The class has the methods and results of SGLang's. It derives from :mod:`pynccl.compat.vllm`'s
class. Operations do nothing outside ``change_state(enable=True)``, unless ``disabled`` is set to
False. It does not support SGLang's symmetric buffers (``--enable-symm-mem``), which call NCCL with
the handle of SGLang's class. Written for SGLang 0.5.23.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from pynccl import nccl
from pynccl.compat import vllm

__all__ = ["PyNcclCommunicator"]

_SUM: Any = ReduceOp.SUM


class PyNcclCommunicator(vllm.PyNcclCommunicator):
    """See SGLang's PyNcclCommunicator.

    Args:
        group: a torch.distributed group of a backend other than nccl, or SGLang's
            StatelessProcessGroup.
        device: the device of all tensors; an integer is a GPU.
        library_path: path of libnccl.so.2; None is the NCCL that pynccl finds.
        is_symmetric_memory_enabled: create the communicator with graph_usage_mode=1.
        cta_policy: of the communicator's configuration; None is NCCL's default.

    Raises:
        NcclError: NCCL failed.
    """

    _switch = ""  # SGLang has none

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - StatelessProcessGroup is SGLang's
        device: int | str | torch.device,
        library_path: str | None = None,
        is_symmetric_memory_enabled: bool = False,
        cta_policy: int | None = None,
    ) -> None:
        self._config = nccl.Config(
            graph_usage_mode=1 if is_symmetric_memory_enabled else None, cta_policy=cta_policy
        )
        super().__init__(group, device, library_path)
        self.disabled = True

    @contextlib.contextmanager
    def change_state(self, enable: bool | None = None) -> Iterator[None]:
        """Enable or disable the operations; None enables them if there is a communicator."""
        before, self.disabled = self.disabled, not (self.available if enable is None else enable)
        try:
            yield
        finally:
            self.disabled = before

    outplace_all_reduce = vllm.PyNcclCommunicator.all_reduce

    def all_reduce(self, tensor: Tensor, op: ReduceOp = _SUM) -> None:  # type: ignore[override]
        self.outplace_all_reduce(tensor, tensor, op)

    def all_gather(  # type: ignore[override]
        self, output_tensor: Tensor, input_tensor: Tensor, sizes: list[int] | None = None
    ) -> None:
        if sizes is None:
            super().all_gather(output_tensor, input_tensor)
        else:
            super().all_gatherv(output_tensor, input_tensor, sizes)

    def reduce_scatter(  # type: ignore[override]
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        op: ReduceOp = _SUM,
        sizes: list[int] | None = None,
    ) -> None:
        if sizes is None:
            super().reduce_scatter(output_tensor, input_tensor, op)
        else:
            super().reduce_scatterv(output_tensor, input_tensor, sizes, op)

    def all_to_all_single(self, output_tensor: Tensor, input_tensor: Tensor) -> None:
        if not self._off(input_tensor):
            self.comm.all_to_all(input_tensor, out=output_tensor)
