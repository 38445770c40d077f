"""Proves that the backend provides what the installed torch requires, as docs/c10d.md lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_OWN = Path(__file__).parents[2] / "csrc" / "c10d"
_OF_TORCH = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d"
_HEADERS = ("Backend.hpp", "Work.hpp", "Window.hpp")

# torch's methods that the backend does not override.
_LEFT = {
    "allreduce_sparse": "NCCL has no sparse tensors",
    "getBoundDeviceId": "torch's own is right",
    "getMemAllocator": "its result is a class of torch's CUDA headers",
    "monitoredBarrier": "torch refuses it of all but gloo",
    "registerOnCompletionHook": "of torch's old NCCL backend",
    "setBoundDeviceId": "torch's own is right",
    # They forward to their older names; gather_into_tensor to gather_single.
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "gather_into_tensor": "gather_single",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


def _code(header: Path) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)


def test_every_method_of_torch_is_overridden_or_left_for_a_reason() -> None:
    """New methods of a newer torch need overrides, and rows in docs/c10d.md."""
    headers = [_OF_TORCH / name for name in _HEADERS if (_OF_TORCH / name).exists()]
    virtual = re.compile(r"\bvirtual\s[^;{(]*?(~?\w+)\s*\(")
    of_torch = {name for header in headers for name in virtual.findall(_code(header))}
    own = {name for path in _OWN.glob("*.h") for name in re.findall(r"(\w+)\s*\(", _code(path))}
    assert "allreduce" in of_torch
    assert of_torch - own <= _LEFT.keys()
    assert not own & _LEFT.keys()


@on_ranks(1)
def test_tensors_are_read_without_a_call_of_torch(rank: Rank) -> None:
    """The offsets in this torch's tensors are found; otherwise a call takes ten times as long."""

    def fail(_: torch.Tensor) -> bool:
        raise AssertionError("torch was asked for what the tensor says")

    with pytest.MonkeyPatch.context() as patch:
        for method in ("is_conj", "is_neg"):
            patch.setattr(torch.Tensor, method, fail)
        rank.comm.all_reduce(torch.zeros(4))
