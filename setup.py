"""Builds with CMake; everything else is in pyproject.toml."""

import os

from setuptools import setup

# The Makefile compiles what has changed, which pip cannot, and then installs the package without.
setup(cmake_source_dir=None if os.environ.get("PYNCCL_BUILT") else ".")
