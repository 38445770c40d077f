"""pynccl.compat.vllm against vLLM's released PyNcclCommunicator and StatelessProcessGroup.

vLLM's class requires GPUs, so only the signatures are compared. Ours runs in vLLM's group on CPUs.
"""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor

import torch
from vllm.distributed.device_communicators import pynccl as wrapper
from vllm.distributed.utils import StatelessProcessGroup

from pynccl.compat.vllm import PyNcclCommunicator
from tests.support.commands import free_port


def _signatures(cls: type) -> dict[str, list[tuple[str, object, object]]]:
    """Names, kinds and defaults of the parameters of each method."""
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(cls, callable)
        if name == "__init__" or not name.startswith("_")
    }


def test_vllm_wrapper_signatures() -> None:
    theirs, ours = _signatures(wrapper.PyNcclCommunicator), _signatures(PyNcclCommunicator)
    assert theirs == ours


def test_vllm_wrapper_in_a_stateless_group() -> None:
    port = free_port()

    def run(rank: int) -> list[float]:
        group = StatelessProcessGroup.create("127.0.0.1", port, rank, 2)
        comm = PyNcclCommunicator(group, "cpu")
        x = comm.all_reduce(torch.full((4,), rank + 1.0))
        assert x is not None
        comm.destroy()
        return x.tolist()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [[3.0] * 4] * 2
