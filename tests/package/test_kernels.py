"""Proves that the kernels of the examples compile for real GPUs, without one: NVRTC compiles CuPy's
RawKernels and the C++ extension's kernel, each for several architectures, to machine code.
test_package.py runs the examples on the devices there are.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

from benchmarks.kernels import compile_for_gpus

_EXAMPLES = Path(__file__).parents[2] / "examples"
_ARCHITECTURES = [80, 90, 100]


def _cupy_source() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))  # the example sets NCCL's variables
        source = runpy.run_path(str(_EXAMPLES / "cupy_kernels.py"))["SOURCE"]
    assert isinstance(source, str)
    return source


@pytest.mark.parametrize("architecture", _ARCHITECTURES)
def test_raw_kernels_compile(architecture: int) -> None:
    code = compile_for_gpus(_cupy_source(), architecture)
    assert code.startswith(b"\x7fELF")
    assert {b"scale", b"bias_relu"} <= set(re.findall(rb"\.text\.(\w+)", code))


@pytest.mark.parametrize("architecture", _ARCHITECTURES)
def test_kernel_of_the_extension_compiles(architecture: int) -> None:
    source = (_EXAMPLES / "cpp_extension" / "scale.cu").read_text()
    assert b".text.scale_kernel" in compile_for_gpus(source, architecture)


def test_compiler_errors_are_reported() -> None:
    with pytest.raises(ValueError, match="factors"):
        compile_for_gpus(_cupy_source().replace("*= factor;", "*= factors;"), 90)
