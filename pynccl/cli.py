"""The command ``pynccl``: this machine and its libraries, hostnccl for others, dumps, traces."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator

import pynccl
from pynccl import _C, installation
from pynccl.doctor import command as doctor
from pynccl.doctor import machine, packages
from pynccl.doctor.library import advise, describe
from pynccl.errors import DriverError, LibraryNotFoundError, NcclError
from pynccl.flight import command as flight
from pynccl.libraries import PROVIDERS, default_provider, hostnccl_preload, load, locate
from pynccl.parameters import params
from pynccl.replay import command as replay
from pynccl.trace import command as trace

__all__ = ["main"]


def _describe(provider: str) -> Iterator[tuple[str, str]]:
    """Lines (label, text) that describe one provider."""
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
    """What to do where something of a provider is missing."""
    facts = describe(provider, with_parameters=False)
    present = machine.has_nvidia_device()
    for finding in advise(facts, required=False, device_present=present):
        if finding.advice:
            yield finding.advice


def _info() -> None:
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


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; None is those of the process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="pynccl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="print providers, libraries, versions, devices, and settings")
    doctor.add_arguments(
        commands.add_parser("doctor", help="say in words what keeps pynccl from working here")
    )
    commands.add_parser(
        "hostnccl",
        help="print the path of a libnccl.so.2 for LD_PRELOAD that runs any NCCL client on CPUs",
    )
    flight.add_arguments(
        commands.add_parser("flight", help="say from the dumps of all ranks who waits for whom")
    )
    replay.add_arguments(
        commands.add_parser("replay", help="issue recorded communication again, at other sizes")
    )
    trace.add_arguments(
        commands.add_parser("trace", help="summaries, merged files, pictures and checks of traces")
    )
    commands.add_parser(
        "build-backend", help="build the backend of torch.distributed for the installed torch"
    )
    arguments = parser.parse_args(argv)
    if arguments.command == "doctor":
        return doctor.run(arguments)
    if arguments.command == "flight":
        return flight.run(arguments)
    if arguments.command == "replay":
        return replay.run(arguments)
    if arguments.command == "trace":
        return trace.run(arguments)
    if arguments.command == "build-backend":
        from pynccl.c10d import build  # torch is not needed for the others

        print(build.build(verbose=True))
    elif arguments.command == "info":
        _info()
    else:
        print(hostnccl_preload())
    return 0


if __name__ == "__main__":
    sys.exit(main())
