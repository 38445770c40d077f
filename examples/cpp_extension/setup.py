"""Builds fused: python setup.py build_ext --inplace.

With nvcc on the PATH (or in CUDA_HOME) the extension also works on GPUs; NVCC="" builds without.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext

import pynccl

HERE = Path(__file__).parent


def find_nvcc() -> str | None:
    """The compiler to use, if there is one."""
    if (named := os.environ.get("NVCC")) is not None:
        return named or None
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin" if home else None)


class Build(build_ext):
    """Compiles the kernel with nvcc, and links it with CUDA's static runtime."""

    def build_extension(self, extension: Pybind11Extension) -> None:
        nvcc = find_nvcc()
        if nvcc is not None:
            extension.define_macros.append(("WITH_NVCC", None))
            folder = Path(self.build_temp).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            kernel = str(folder / "scale.o")
            architecture = os.environ.get("NVCC_ARCH", "all-major")
            command = [nvcc, f"-arch={architecture}", "-Xcompiler=-fPIC", "-c", "scale.cu"]
            subprocess.run([*command, "-o", kernel], cwd=HERE, check=True)
            extension.extra_objects.append(kernel)
            plan = subprocess.run(  # what nvcc itself would do, with its library folders
                [*command, "-dryrun"], cwd=HERE, check=True, capture_output=True, text=True
            )
            extension.library_dirs += re.findall(r'"-L([^"]+)"', plan.stderr)
            extension.libraries += ["cudart_static", "dl", "rt", "pthread"]
        super().build_extension(extension)


setup(
    name="fused",
    version="1.0",
    ext_modules=[
        Pybind11Extension("fused", ["fused.cpp"], include_dirs=[pynccl.get_include()], cxx_std=17)
    ],
    cmdclass={"build_ext": Build},
)
