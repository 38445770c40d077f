"""The library and driver of a provider, and advice if something is missing.

describe() loads libraries. A broken one may crash or hang, so the doctor calls it in a child
process with a time limit. advise() interprets the result.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pynccl import _C, libraries
from pynccl.errors import DriverError, LibraryNotFoundError, NcclError
from pynccl.parameters import params
from pynccl.tools.doctor.finding import LEVELS, Finding

__all__ = ["Facts", "advise", "describe"]

_EXTRAS = {13: "cuda13", 12: "cuda12"}
_DRIVERS = {13: "580", 12: "525"}  # the first driver of each CUDA
_NO_CUDA = "CPUs need neither libnccl.so.2 nor a driver: use provider 'host'"
# Advice for results of cuInit.
_CUINIT = {
    "CUDA_ERROR_NO_DEVICE": "look for the GPU with nvidia-smi, and check CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine: the loaded kernel module and "
    "libcuda.so.1 belong to different drivers",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "remove the forward compatibility package "
    "(cuda-compat) from LD_LIBRARY_PATH, or update the driver",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start nvidia-fabricmanager, which GPUs with NVSwitch need",
    "CUDA_ERROR_UNKNOWN": "load the module nvidia_uvm (modprobe), or restart the machine",
    "CUDA_ERROR_OPERATING_SYSTEM": "check dmesg and the permissions of /dev/nvidia*",
}


@dataclass
class Facts:
    """The result of describe() for one provider.

    Attributes:
        provider: "cuda" or "host".
        path: the library; "" if none was found.
        reason: why this one was chosen.
        error: why it could not be loaded, or "".
        version: NCCL's version code.
        memory: "host" or "device".
        functions: the number of nccl.h functions that pynccl knows.
        missing: those that the library does not export.
        driver: the library that provides streams; "" if there is none.
        driver_version: 13000 for CUDA 13.0.
        driver_error: why the driver cannot be used, or "".
        devices: the names of the devices.
        parameters: the names of the library's documented parameters.
        wrong: the library's messages about parameters whose values it rejects.
    """

    provider: str
    path: str = ""
    reason: str = ""
    error: str = ""
    version: int = 0
    memory: str = ""
    functions: int = 0
    missing: list[str] = field(default_factory=list)
    driver: str = ""
    driver_version: int = 0
    driver_error: str = ""
    devices: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether ranks can be started over this provider."""
        return not self.error and not self.driver_error and bool(self.devices)


def describe(provider: str) -> Facts:
    """Load a provider's library and driver, and query them.

    Args:
        provider: "cuda" or "host".
    """
    facts = Facts(provider)
    try:
        facts.path, facts.reason = libraries.locate(provider)
        library = libraries.load(provider)
    except LibraryNotFoundError as error:
        facts.error = str(error)
        return facts
    facts.version = library.version
    facts.memory = library.memory
    functions = library.functions()
    facts.functions = len(functions)
    facts.missing = [name for name, (_, present) in functions.items() if not present]
    try:
        facts.devices = library.device_names()
        facts.driver = library.driver_path
        facts.driver_version = library.driver_version()
    except (LibraryNotFoundError, DriverError, NcclError) as error:
        facts.driver_error = str(error)
    if library.memory == "host":
        values = params(provider)
        facts.parameters = list(values)
        for name in facts.parameters:
            try:
                values[name]
            except NcclError as error:
                facts.wrong.append(str(error))
    return facts


def advise(facts: Facts, *, required: bool, device_present: bool) -> Iterator[Finding]:
    """Turn facts into findings.

    Args:
        facts: the facts about one provider.
        required: whether the program requires this provider; anything missing is then a problem.
        device_present: whether there is an NVIDIA GPU; the same then holds for provider "cuda".
    """
    area = f"provider {facts.provider}"
    wanted = required or device_present or facts.provider == "host"
    ok, note, problem = (partial(Finding, area, level) for level in LEVELS)
    lacking = problem if wanted else note
    chosen = facts.reason.startswith("PYNCCL_")  # by a variable
    if facts.error and not wanted and not chosen:
        yield note(
            "there is no libnccl.so.2, and no NVIDIA GPU",
            "nothing to do for CPUs: use provider 'host'",
        )
        return
    if facts.error:
        yield problem(facts.error, _advice_for_library(facts, device_present))
        return
    name = "NCCL" if facts.provider == "cuda" else "hostnccl, with the functions of NCCL"
    yield ok(f"{name} {_C.version_text(facts.version)}: {facts.path} ({facts.reason})")
    if facts.missing:
        present = facts.functions - len(facts.missing)
        yield note(
            f"it provides {present} of the {facts.functions} functions that pynccl knows; the "
            "others raise "
            "MissingFunctionError (`pynccl info` lists them)"
        )
    if facts.driver_error:
        yield lacking(
            f"no GPU can be used: {facts.driver_error}",
            _advice_for_driver(facts.driver_error, device_present),
        )
        return
    if facts.provider == "cuda":
        yield from _cuda_findings(area, lacking, facts)


def _cuda_findings(area: str, lacking: partial[Finding], facts: Facts) -> Iterator[Finding]:
    ok, _, problem = (partial(Finding, area, level) for level in LEVELS)
    cuda = f"{facts.driver_version // 1000}.{facts.driver_version % 1000 // 10}"
    package, needed = _cuda_of(facts.path)
    if facts.driver_version // 1000 < needed:
        yield problem(
            f"the driver is for CUDA {cuda}, and {package} is built for CUDA {needed}",
            f"update the driver to {_DRIVERS[needed]} or newer, or pip install "
            f"nvidia-nccl-cu{facts.driver_version // 1000} (the extra "
            f"{_EXTRAS.get(facts.driver_version // 1000, 'cuda12')})",
        )
    else:
        yield ok(f"driver for CUDA {cuda}: {facts.driver}")
    if not facts.devices:
        yield lacking("the driver sees no GPU", _advice_for_driver("", True))
        return
    named = "; ".join(f"{i}: {name}" for i, name in enumerate(facts.devices))
    yield ok(f"GPUs: {named}")


def _cuda_of(path: str) -> tuple[str, int]:
    """The package of a libnccl.so.2, and the CUDA version it is built for; 0 if unknown."""
    for cuda in sorted(_EXTRAS, reverse=True):
        name = f"nvidia-nccl-cu{cuda}"
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == Path(path).name and os.path.realpath(str(file.locate())) == (
                os.path.realpath(path)
            ):
                return name, cuda
    return path, 0


def _advice_for_library(facts: Facts, device_present: bool) -> str:
    if facts.reason.startswith("PYNCCL_"):
        name = "libhostnccl.so" if facts.provider == "host" else "libnccl.so.2"
        advice = f"unset {facts.reason}, or set it to the path of a {name}"
    elif facts.provider == "host":
        advice = "install pynccl again: its library is missing or damaged"
    elif "cuda-pathfinder" in facts.error:
        advice = "pip install cuda-pathfinder"
    elif "pynccl needs" in facts.error:
        advice = "pip install --upgrade nvidia-nccl-cu13 (nvidia-nccl-cu12 for an older driver)"
    elif (major := _driver_major()) in _EXTRAS:
        advice = f"pip install nvidia-nccl-cu{major} (the extra {_EXTRAS[major]})"
    elif device_present:
        advice = "pip install nvidia-nccl-cu13 (the extra cuda13), or -cu12 for a driver before 580"
    else:
        advice = f"nothing to do on a machine without a GPU: {_NO_CUDA}"
    return advice


def _driver_major() -> int:
    """The driver's major CUDA version, such as 13; 0 if unknown."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value // 1000


def _advice_for_driver(error: str, device_present: bool) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides all GPUs: unset it"
    for name, advice in _CUINIT.items():
        if name in error:
            return advice
    if " has no cu" in error or "has no host" in error:
        return "update the NVIDIA driver: it is older than CUDA 12"
    if not device_present:
        return f"nothing to do on a machine without a GPU: {_NO_CUDA}"
    if "libcuda.so.1" in error and "cannot open" in error:
        return (
            "install the NVIDIA driver; in a container: docker run --gpus all, with the NVIDIA "
            "Container Toolkit and the capability compute"
        )
    return "check nvidia-smi"
