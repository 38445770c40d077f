"""``pynccl info``: providers, libraries, versions, devices, packages and settings."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator

import pynccl
from pynccl import _C
from pynccl._internal import installation
from pynccl.errors import DriverError, LibraryNotFoundError, NcclError
from pynccl.libraries import PROVIDERS, default_provider, load, locate
from pynccl.parameters import params
from pynccl.tools.doctor import machine, packages
from pynccl.tools.doctor.library import advise, describe

__all__ = ["add_arguments", "run"]


def _describe(provider: str) -> Iterator[tuple[str, str]]:
    """Yield (label, text) lines that describe one provider."""
    try:
        location = locate(provider)
        yield "library", f"{location.path} ({location.reason})"
        library = load(provider)
    except LibraryNotFoundError as error:
        yield "library", f"not usable: {error}"
        return
    functions = library.functions()
    missing = [name for name, (_, present) in functions.items() if not present]
    yield "version", f"{_C.version_text(library.version)} ({library.version})"
    header = _C.version_text(_C.ncclConfig_t().version).rpartition(".")[0]
    yield f"nccl.h {header}", f"{len(functions) - len(missing)} of {len(functions)} functions"
    if missing:
        yield "without", ", ".join(missing)
    yield "memory", library.memory
    try:
        names = library.device_names()
        yield "streams", f"{library.driver_path} (driver {library.driver_version()})"
        yield "devices", "; ".join(f"{i}: {name}" for i, name in enumerate(names)) or "none"
    except (LibraryNotFoundError, DriverError, NcclError) as error:
        yield "devices", f"none usable: {error}"


def _to_do(provider: str) -> Iterator[str]:
    """Yield advice on what the provider is missing."""
    facts = describe(provider, with_parameters=False)
    present = machine.has_nvidia_device()
    for finding in advise(facts, required=False, device_present=present):
        if finding.advice:
            yield finding.advice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the command takes none."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status, 0.
    """
    print(f"pynccl {pynccl.__version__}, Python {platform.python_version()}, {platform.platform()}")
    if problem := installation.conflict():
        print(f"problem: {problem}")
    print(f"default provider: {default_provider()}")
    for provider in PROVIDERS:
        print(f"\nprovider {provider}")
        for label, text in _describe(provider):
            print(f"  {label:<12} {text}")
        for text in _to_do(provider):
            print(f"  {'to do':<12} {text}")
    print("\npackages")
    for finding in packages.examine(device_present=machine.has_nvidia_device()):
        print(f"  {finding.text}")
        if finding.advice:
            print(f"  {'to do':<12} {finding.advice}")
    print("\nparameters of provider host", flush=True)
    params("host").dump()
    return 0
