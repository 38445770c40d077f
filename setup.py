"""Builds with CMake; everything else is in pyproject.toml."""

from setuptools import setup

setup(cmake_source_dir=".")
