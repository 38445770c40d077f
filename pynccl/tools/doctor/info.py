"""``pynccl info``: providers, libraries, versions, devices and settings."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator

import pynccl
from pynccl import _C
from pynccl._internal import installation
from pynccl.libraries import PROVIDERS, default_provider
from pynccl.parameters import params
from pynccl.tools.doctor.library import Facts, describe

__all__ = ["add_arguments", "run"]


def _default_provider() -> str:
    """Return the default provider, or the error in PYNCCL_PROVIDER."""
    try:
        return default_provider()
    except ValueError as error:
        return f"none: {error}"


def _lines(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield (label, text) lines that describe one provider."""
    if facts.path:
        yield "library", f"{facts.path} ({facts.reason})"
    if facts.error:
        yield "library", f"not usable: {facts.error}"
        return
    yield "version", f"{_C.version_text(facts.version)} ({facts.version})"
    header = _C.version_text(_C.ncclConfig_t().version).rpartition(".")[0]
    present = facts.functions - len(facts.missing)
    yield f"nccl.h {header}", f"{present} of {facts.functions} functions"
    if facts.missing:
        yield "without", ", ".join(facts.missing)
    yield "memory", facts.memory
    if facts.driver_error:
        yield "devices", f"none usable: {facts.driver_error}"
        return
    yield "streams", f"{facts.driver} (driver {facts.driver_version})"
    yield "devices", "; ".join(f"{i}: {name}" for i, name in enumerate(facts.devices)) or "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--all", action="store_true", help="print all parameters of hostnccl with their values"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status, 0.

    Raises:
        LibraryNotFoundError: hostnccl cannot be loaded.
    """
    print(f"pynccl {pynccl.__version__}, Python {platform.python_version()}, {platform.platform()}")
    if problem := installation.conflict():
        print(f"problem: {problem}")
    print(f"default provider: {_default_provider()}")
    for provider in PROVIDERS:
        print(f"\nprovider {provider}")
        for label, text in _lines(describe(provider)):
            print(f"  {label:<12} {text}")
    found = params("host")
    print("\nparameters of provider host", flush=True)
    if arguments.all:
        found.dump()
        return 0
    changed = [name for name in found if name in os.environ]
    for name in changed:
        print(f"  {name}={found[name]}")
    print(f"  {len(found) - len(changed)} are not set; --all prints them")
    return 0
