"""Tensors are sent as float8 with scales, with the precision of float8."""

from __future__ import annotations

import pytest
import torch

from pynccl.weights.float8 import float8, quantize
from tests.weights import models
from tests.weights.sessions import run

_EXACT = 2**-4  # relative, of 3 bits of mantissa


def dequantize(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    rows, columns = values.shape
    repeated = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return values.float() * repeated[:rows, :columns]


@pytest.mark.parametrize("shape", [(128, 256), (130, 100), (1, 1), (3, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(
        -3, 3, shape, generator=generator
    )
    tensor = tensor.to(dtype)
    values, scales = quantize(tensor)
    assert values.dtype == torch.float8_e4m3fn
    assert values.shape == tensor.shape
    again = dequantize(values, scales)
    # Numbers far below the largest of their block are not normal in float8.
    least = scales.max() * 2**-9
    assert torch.all((again - tensor.float()).abs() <= tensor.float().abs() * _EXACT + least)
    assert torch.isfinite(again).all()


def test_largest_number_is_exact_and_zeros_stay() -> None:
    tensor = torch.zeros(256, 128)
    tensor[0, 0] = -3.5
    values, scales = quantize(tensor)
    assert scales.shape == (2, 1)
    assert values[0, 0].float() == -448
    assert torch.equal(dequantize(values, scales), tensor)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_matrices_without_elements(shape: tuple[int, int]) -> None:
    _, metadata = float8({"weight": torch.empty(shape)})
    values, scales = quantize(torch.empty(shape))
    assert [values.shape, scales.shape] == [spec.shape for spec in metadata.values() if spec]


def test_values_and_scales_are_sent() -> None:
    tensors = {
        "layer.weight": torch.randn(200, 300),
        "layer.bias": torch.randn(200),
        "norm.weight": torch.randn(300),
        "count": torch.tensor([3]),
    }
    gather, metadata = float8(tensors)
    names = ["layer.weight", "layer.weight_scale_inv", "layer.bias", "norm.weight", "count"]
    assert list(metadata) == names
    sent, received = run(
        [lambda sender: sender.send(gather, metadata=metadata)],
        [lambda receiver: (receiver.receive(), dict(receiver.tensors))[1]],
        [None],
    )
    assert sent.receivers == ("receiver 0",)
    assert list(received) == names
    values, scales = quantize(tensors["layer.weight"])
    expected = {"layer.weight": values, "layer.weight_scale_inv": scales}
    expected |= {name: tensors[name] for name in names[2:]}
    assert models.equal(received, expected)


def test_selected_tensors() -> None:
    tensors = {"a.weight": torch.ones(4, 4), "b": torch.ones(4, 4)}
    _, metadata = float8(tensors, chosen=lambda name, _: name == "b")
    assert {name: spec.dtype for name, spec in metadata.items()} == {
        "a.weight": "float32",
        "b": "float8_e4m3fn",
        "b_scale_inv": "float32",
    }
    with pytest.raises(ValueError, match=r"'a.weight_scale_inv' is the name of the scales"):
        float8({**tensors, "a.weight_scale_inv": torch.ones(1)})
    with pytest.raises(ValueError, match=r"'x' has shape \(4,\), expected two dimensions"):
        float8({"x": torch.ones(4)}, chosen=lambda *_: True)
