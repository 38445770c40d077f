"""vLLM's PyNcclCommunicator over pynccl, on GPUs and on CPUs.

    from vllm.distributed.device_communicators import pynccl as wrapper

    from pynccl.compat.vllm import PyNcclCommunicator

    wrapper.PyNcclCommunicator = PyNcclCommunicator  # before vLLM creates its groups

The class has the methods and results of vLLM's, which calls NCCL through ctypes. vLLM itself is not
required. Differences: ``comm`` is a :class:`pynccl.nccl.Communicator`, windows are
:class:`pynccl.nccl.Window`, and there is no ``nccl``, the wrapper of the library. A device of type
cpu uses hostnccl. Operations have the time limit of PYNCCL_TIMEOUT. Written for vLLM 0.33.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from pynccl import nccl
from pynccl.libraries import load

__all__ = ["PyNcclCommunicator"]

_ABORT_SECONDS = 5.0
_SUM: Any = ReduceOp.SUM


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a tensor of 8-bit floats, some of which NCCL does not support."""
    is_float8 = tensor.dtype.is_floating_point and tensor.element_size() == 1
    return tensor.view(torch.uint8) if is_float8 else tensor


class PyNcclCommunicator:
    """See vLLM's PyNcclCommunicator.

    With one rank, without NCCL, or with VLLM_DISABLE_PYNCCL=1, it is disabled: its operations do
    nothing and return None.

    Args:
        group: a torch.distributed group of a backend other than nccl, or vLLM's
            StatelessProcessGroup.
        device: the device of all tensors; an integer is a GPU.
        library_path: path of libnccl.so.2; None is the NCCL that pynccl finds.

    Attributes:
        available, disabled: whether it has a communicator, and whether operations do nothing.
        rank, world_size, device, group: the arguments.
        comm: the communicator.
        nccl_version: NCCL's version as an integer, such as 23203.

    Raises:
        NcclError: NCCL failed.
    """

    _config: nccl.Config | None = None
    _switch = "VLLM_DISABLE_PYNCCL"

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - StatelessProcessGroup is vLLM's
        device: int | str | torch.device,
        library_path: str | None = None,
    ) -> None:
        of_torch = isinstance(group, ProcessGroup) or group is None
        self.rank: int = torch.distributed.get_rank(group) if of_torch else group.rank
        size = torch.distributed.get_world_size(group) if of_torch else group.world_size
        self.world_size: int = size
        self.group = group
        if not self._load(device, library_path):
            return
        unique_id = bytes(128)
        if self.rank == 0:
            unique_id = bytes(nccl.get_unique_id(self._provider))
        if of_torch:
            tensor = torch.tensor(list(unique_id), dtype=torch.uint8)
            root = torch.distributed.get_process_group_ranks(group)[0]
            torch.distributed.broadcast(tensor, src=root, group=group)
            unique_id = bytes(tensor.tolist())
        else:
            unique_id = group.broadcast_obj(unique_id, src=0)
        self._create(unique_id)

    @classmethod
    def from_unique_id_bytes(
        cls,
        unique_id_bytes: bytes,
        rank: int,
        world_size: int,
        device: int | str | torch.device,
        library_path: str | None = None,
    ) -> PyNcclCommunicator:
        """Create a communicator with a unique id that all ranks know.

        Args:
            unique_id_bytes: the unique id, 128 bytes.
            rank: rank of this process.
            world_size: number of ranks.
            device: the device of all tensors.
            library_path: path of libnccl.so.2.

        Returns:
            The communicator.

        Raises:
            ValueError: the id or the rank is invalid.
            LibraryNotFoundError: NCCL was not found.
            NcclError: NCCL failed.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: {rank} is not a rank of world_size={world_size}")
        self = cls.__new__(cls)
        self.rank, self.world_size, self.group = rank, world_size, None
        if self._load(device, library_path, required=True):
            self._create(unique_id_bytes)
        return self

    def _load(
        self, device: int | str | torch.device, library_path: str | None, *, required: bool = False
    ) -> bool:
        """Load the library, or disable the communicator and return False."""
        self.available, self.disabled, self._suspended = False, True, False
        self._groups: list[contextlib.AbstractContextManager[Any]] = []
        if self.world_size == 1 or os.environ.get(self._switch, "0") in ("1", "true"):
            return False
        self.device = (
            torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        )
        self._provider = "host" if self.device.type == "cpu" else "cuda"
        if library_path is not None and self._provider == "cuda":
            os.environ.setdefault("PYNCCL_NCCL_LIBRARY", library_path)
        try:
            self.nccl_version = load(self._provider).version
        except nccl.LibraryNotFoundError:
            if required:
                raise
            return False
        return True

    def _create(self, unique_id: bytes) -> None:
        """Create the communicator, and run the first operation, as vLLM does."""
        index = self.device.index if self._provider == "cuda" else None
        self.comm = nccl.Communicator(
            self.world_size,
            nccl.UniqueId(unique_id),
            self.rank,
            provider=self._provider,
            device=index,
            config=self._config,
        )
        self.available, self.disabled = True, False
        self.all_reduce(torch.zeros(1, device=self.device))
        if self._provider == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _off(self, tensor: Tensor) -> bool:
        """Whether operations do nothing; if not, checks the device of the tensor."""
        assert self.disabled or tensor.device == self.device, (
            f"this communicator is on {self.device}, but the tensor is on {tensor.device}"
        )
        return self.disabled

    def destroy(self) -> None:
        """Abort the communicator, for at most 5 seconds: graphs that use it delay that."""
        if not self.available:
            return
        self.available, self.disabled = False, True
        abort = threading.Thread(target=self.comm.abort, daemon=True)
        abort.start()
        abort.join(_ABORT_SECONDS)

    def all_reduce(
        self,
        in_tensor: Tensor,
        out_tensor: Tensor | None = None,
        op: ReduceOp = _SUM,
        stream: object = None,
    ) -> Tensor | None:
        if self._off(in_tensor):
            return None
        if out_tensor is None:
            out_tensor = torch.empty_like(in_tensor)
        self.comm.all_reduce(in_tensor, op, out=out_tensor, stream=stream)
        return out_tensor

    def all_gather(
        self, output_tensor: Tensor, input_tensor: Tensor, stream: object = None
    ) -> None:
        if not self._off(input_tensor):
            self.comm.all_gather(input_tensor, out=output_tensor, stream=stream)

    def all_gatherv(
        self, output_tensor: Tensor, input_tensor: Tensor, sizes: list[int], stream: object = None
    ) -> None:
        if self._off(input_tensor):
            return
        assert output_tensor.shape[0] == sum(sizes)
        with nccl.group():
            for root, part in enumerate(output_tensor.split_with_sizes(sizes)):
                source = input_tensor if root == self.rank else part
                self.comm.broadcast(source, root, out=part, stream=stream)

    def reduce_scatter(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        op: ReduceOp = _SUM,
        stream: object = None,
    ) -> None:
        if not self._off(input_tensor):
            self.comm.reduce_scatter(input_tensor, op, out=output_tensor, stream=stream)

    def reduce_scatterv(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        sizes: list[int],
        op: ReduceOp = _SUM,
        stream: object = None,
    ) -> None:
        if self._off(input_tensor):
            return
        with nccl.group():
            for root, part in enumerate(input_tensor.split_with_sizes(sizes)):
                out = output_tensor if root == self.rank else None
                self.comm.reduce(part, root, op, out=out, stream=stream)

    def reduce(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        root: int,
        op: ReduceOp = _SUM,
        stream: object = None,
    ) -> None:
        if self._off(input_tensor):
            return
        out = output_tensor if root == self.rank else None
        self.comm.reduce(input_tensor, root, op, out=out, stream=stream)

    def scatter(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        sizes: list[int],
        root: int = 0,
        stream: object = None,
    ) -> None:
        if self._off(output_tensor):
            return
        if self.rank == root:
            parts = input_tensor.split_with_sizes(sizes)
            output_tensor.copy_(parts[root])
            with nccl.group():
                for peer, part in enumerate(parts):
                    if peer != root and part.numel() > 0:
                        self.send(part, peer, stream)
        elif sizes[self.rank] > 0:
            self.recv(output_tensor, root, stream)

    def send(self, tensor: Tensor, dst: int, stream: object = None) -> None:
        if not self._off(tensor):
            self.comm.send(_bytes_of(tensor), dst, stream=stream)

    def recv(self, tensor: Tensor, src: int, stream: object = None) -> None:
        if not self._off(tensor):
            self.comm.recv(_bytes_of(tensor), src, stream=stream)

    def broadcast(self, tensor: Tensor, src: int, stream: object = None) -> None:
        if not self._off(tensor):
            self.comm.broadcast(tensor, src, stream=stream)

    def group_start(self) -> None:
        self._groups.append(nccl.group())
        self._groups[-1].__enter__()

    def group_end(self) -> None:
        self._groups.pop().__exit__(None, None, None)

    def register_comm_window(self, tensor: Tensor) -> nccl.Window:
        return self.comm.register_window(tensor, symmetric=True)

    def register_comm_window_raw(self, ptr: int, size: int) -> nccl.Window:
        return self.comm.register_window(ptr, count=size, dtype="uint8", symmetric=True)

    def deregister_comm_window(self, window: nccl.Window) -> None:
        window.close()

    def suspend(self) -> None:
        """Release the GPU memory of the communicator, if NCCL can (2.29.7 or newer)."""
        if self.disabled or self._suspended:
            return
        with contextlib.suppress(nccl.MissingFunctionError):
            self.comm.suspend()
            self._suspended = True

    def resume(self) -> None:
        """Allocate the memory again, if it was released."""
        if self.disabled or not self._suspended:
            return
        self.comm.resume()
        self._suspended = False

    def batch_isend_irecv(self, p2p_ops: Sequence[Any], stream: object = None) -> None:
        if self.disabled:
            return
        with nccl.group():
            for op in p2p_ops:
                if op.op is torch.distributed.isend:
                    self.send(op.tensor, op.group_peer, stream)
                elif op.op is torch.distributed.irecv:
                    self.recv(op.tensor, op.group_peer, stream)
