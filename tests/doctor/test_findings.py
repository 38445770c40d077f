"""Proves the doctor's findings for each kind of machine, package, library and variable, and that
its tables list every variable that pynccl and hostnccl read.
"""

from __future__ import annotations

import importlib.metadata
import re
import resource
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pynccl.nccl import params
from pynccl.tools.doctor import Finding, library, machine, packages, variables
from pynccl.tools.doctor.library import Facts, advise, describe
from pynccl.tools.doctor.variables import PYNCCL

_ROOT = Path(__file__).parents[2]
_MIB = 2**20
_GIB = 2**30


def _about(findings: Iterable[Finding], text: str) -> Finding:
    (found,) = [one for one in findings if text in one.text]
    return found


@pytest.mark.parametrize(
    ("memory", "level", "text"),
    [
        ((8 * _GIB, 7 * _GIB), "ok", "/dev/shm has 8 GiB, of which 7 GiB are free"),
        ((64 * _MIB, 64 * _MIB), "note", "little for many ranks"),
        ((64 * _MIB, _MIB), "problem", "too little for NCCL"),
        ((8 * _GIB, 2**19), "problem", "of which 512 KiB are free: too little"),
        (None, "note", "there is no /dev/shm"),
    ],
)
def test_shared_memory(
    monkeypatch: pytest.MonkeyPatch, memory: tuple[int, int] | None, level: str, text: str
) -> None:
    def disk_usage(path: str) -> SimpleNamespace:
        if memory is None:
            raise FileNotFoundError(path)
        return SimpleNamespace(total=memory[0], free=memory[1])

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    found = _about(machine.examine(), "/dev/shm")
    assert found.level == level
    assert text in found.text
    assert bool(found.advice) == (level != "ok")
    full = memory is not None and memory[0] > _GIB and level == "problem"
    assert ("remove files that other programs left" in found.advice) == full


@pytest.mark.parametrize(("scope", "level"), [(None, "ok"), (0, "ok"), (1, "note"), (3, "note")])
def test_ptrace(monkeypatch: pytest.MonkeyPatch, scope: int | None, level: str) -> None:
    monkeypatch.setattr(machine, "ptrace_scope", lambda: scope)
    found = _about(machine.examine(), "ptrace")
    assert found.level == level
    assert ("sysctl kernel.yama.ptrace_scope=0" in found.advice) == (level == "note")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        resource.RLIMIT_NOFILE: (256, 4096),
        resource.RLIMIT_MEMLOCK: (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        resource.RLIMIT_AS: (_GIB, _GIB),
    }
    monkeypatch.setattr(resource, "getrlimit", lambda kind: given[kind])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    found = list(machine.examine())
    files = _about(found, "ulimit -n")
    assert (files.level, files.advice) == ("note", "ulimit -n 4096")
    assert _about(found, "ulimit -l").text == "a process may lock unlimited memory (ulimit -l)"
    assert _about(found, "ulimit -v").advice == "ulimit -v unlimited"
    assert _about(found, "one CPU").level == "note"


@pytest.mark.parametrize(
    ("installed", "text", "level"),
    [
        ({"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu", "ok"),
        ({"torch": "2.4.1"}, "older than 2.11", "problem"),
        ({}, "torch is not installed", "note"),
        ({}, "NumPy is not installed", "note"),
    ],
)
def test_packages(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], text: str, level: str
) -> None:
    monkeypatch.setattr(packages, "_version", installed.get)
    found = _about(packages.examine(device_present=False), text)
    assert found.level == level
    assert found.advice.startswith("pip install") == (level != "ok")


def test_tools_that_build_the_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "_version", {"torch": "2.13.0+cpu"}.get)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "g++-11")
    found = _about(packages.examine(device_present=False), "cannot find g++-11 and ninja, which")
    assert found.level == "note"
    assert "pip install ninja" in found.advice
    (tmp_path / "ninja").touch(mode=0o755)  # beside Python, in an environment that is not activated
    (tmp_path / "g++-11").touch(mode=0o755)
    findings = list(packages.examine(device_present=False))
    assert not any("cannot find" in one.text for one in findings)


def test_packages_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_version", {"torch": "2.13.0+cpu"}.get)
    found = list(packages.examine(device_present=True))
    assert _about(found, "built without CUDA").level == "note"
    assert _about(found, "cuda-pathfinder").advice == "pip install cuda-pathfinder"


def _cuda(**facts: object) -> Facts:
    whole = {
        "path": "/x/libnccl.so.2",
        "reason": "found",
        "version": 22800,
        "functions": 94,
        "driver": "/usr/lib/libcuda.so.1",
        "driver_version": 13000,
        "devices": ["A", "B"],
    }
    return Facts("cuda", **{**whole, **facts})  # type: ignore[arg-type]


def test_a_working_provider() -> None:
    found = list(advise(_cuda(), required=True, device_present=True))
    assert {one.level for one in found} == {"ok"}
    assert _about(found, "NCCL 2.28.0").text.endswith("/x/libnccl.so.2 (found)")
    assert _about(found, "driver for CUDA 13.0")
    assert _about(found, "GPUs: 0: A; 1: B")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("libnccl.so.2 was not found; install", "pip install nvidia-nccl-cu13 (the extra cuda13)"),
        ("... cuda-pathfinder, which locates it, is not installed", "pip install cuda-pathfinder"),
        ("/x is NCCL 2.17.1; pynccl needs 2.18.0 or newer", "pip install --upgrade nvidia-nccl"),
    ],
)
def test_no_library(monkeypatch: pytest.MonkeyPatch, error: str, advice: str) -> None:
    """A problem if there is a GPU or the provider is required; otherwise nothing to do."""
    monkeypatch.setattr(library, "_driver_major", lambda: 0)
    facts = Facts("cuda", error=error)
    for required, present in ((False, True), (True, False), (True, True)):
        (found,) = advise(facts, required=required, device_present=present)
        assert found.level == "problem"
        assert found.text == error
        assert found.advice.startswith(advice) or not present
    (found,) = advise(facts, required=False, device_present=False)
    assert (found.level, found.text) == ("note", "there is no libnccl.so.2, and no NVIDIA GPU")
    monkeypatch.setattr(library, "_driver_major", lambda: 12)
    (found,) = advise(Facts("cuda", error="not found"), required=False, device_present=True)
    assert found.advice == "pip install nvidia-nccl-cu12 (the extra cuda12)"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("libcuda.so.1: cannot open shared object file", "install the NVIDIA driver; in a cont"),
        ("libcuda.so.1: cuInit failed: CUDA_ERROR_NO_DEVICE", "look for the GPU with nvidia-smi"),
        ("cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY", "start nvidia-fabricmanager"),
        ("cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"),
        ("libcuda.so.1 has no cuGraphInstantiateWithFlags", "update the NVIDIA driver"),
        ("something else", "check nvidia-smi"),
    ],
)
def test_no_driver(monkeypatch: pytest.MonkeyPatch, error: str, advice: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    facts = _cuda(driver="", driver_version=0, driver_error=error, devices=[])
    assert not facts.usable
    found = list(advise(facts, required=False, device_present=True))
    assert (found[-1].level, found[-1].text) == ("problem", f"no GPU can be used: {error}")
    assert found[-1].advice.startswith(advice)
    found = list(advise(facts, required=False, device_present=False))
    assert found[-1].level == "note"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = list(advise(facts, required=False, device_present=True))
    assert "which hides all GPUs" in found[-1].advice


def test_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_cuda_of", lambda _: ("nvidia-nccl-cu13", 13))
    found = list(advise(_cuda(driver_version=12040), required=False, device_present=True))
    old = _about(found, "the driver is for CUDA 12.4, and nvidia-nccl-cu13 is built for CUDA 13")
    assert old.level == "problem"
    assert "update the driver to 580" in old.advice
    assert "nvidia-nccl-cu12 (the extra cuda12)" in old.advice


def test_the_package_of_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.touch()

    class File(str):
        __slots__ = ()
        name = "libnccl.so.2"

        def locate(self) -> Path:
            return path

    def files(name: str) -> list[File]:
        if name != "nvidia-nccl-cu12":
            raise importlib.metadata.PackageNotFoundError(name)
        return [File("nvidia/nccl/lib/libnccl.so.2")]

    monkeypatch.setattr(importlib.metadata, "files", files)
    assert library._cuda_of(str(path)) == ("nvidia-nccl-cu12", 12)
    assert library._cuda_of("/other/libnccl.so.2") == ("/other/libnccl.so.2", 0)


def test_no_devices_and_missing_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = list(advise(_cuda(devices=[]), required=True, device_present=False))
    assert (found[-1].level, found[-1].text) == ("problem", "the driver sees no GPU")
    found = list(advise(_cuda(missing=["ncclX"] * 14), required=False, device_present=True))
    assert _about(found, "80 of the 94 functions").level == "note"


def test_another_package_with_this_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "pynccl":
            return "0.1.1"
        raise importlib.metadata.PackageNotFoundError

    assert not any("another project" in one.text for one in packages.examine(device_present=False))
    monkeypatch.setattr(importlib.metadata, "version", version)
    found = _about(packages.examine(device_present=False), "another project's package")
    assert found.level == "problem"
    assert found.text.startswith("pynccl 0.1.1")
    assert found.advice == "pip uninstall -y pynccl rawnccl && pip install rawnccl"


def test_keys_are_not_shown() -> None:
    environment = {"PYNCCL_WEIGHTS_KEY": "0123456789", "PYNCCL_WEIGHT_KEY": "0123456789"}
    findings = list(variables.examine(environment, []))
    assert _about(findings, "PYNCCL_WEIGHTS_KEY - the key of sessions").level == "ok"
    assert not any("0123456789" in one.text + one.advice for one in findings)


def test_every_variable_of_pynccl_is_known() -> None:
    read = set()
    for folder, pattern in (("pynccl", "*.py"), ("csrc", "*.cpp"), ("csrc", "*.h")):
        for path in (_ROOT / folder).rglob(pattern):
            if path.parts[-2] == "doctor" or "/pynccl/include/" in str(path):
                continue
            read |= set(
                re.findall(r'(?:environ|getenv)\W[^\n]{0,12}"(PYNCCL_\w+)"', path.read_text())
            )
    read |= set(re.findall(r'"(PYNCCL_\w+)"', (_ROOT / "setup.py").read_text()))
    assert len(read) > 10
    assert read <= set(PYNCCL)


def test_the_parameters_of_hostnccl() -> None:
    facts = describe("host")
    assert facts.usable
    assert set(facts.parameters) == set(params("host"))
    assert facts.wrong == []


def test_the_variables_of_nccl(tmp_path: Path) -> None:
    """Those of the library that was found: versions read different ones."""
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"..\0NCCL_DEBUG\0set NCCL_ALGO or\0NCCL_P2P_DISABLE\0")
    given = {"NCCL_DEBUG": "INFO", "NCCL_P2P_DISABEL": "1", "NCCL_ALGO": "ring"}
    found = list(variables.examine(given, [_cuda(path=str(path))], files=()))
    known = _about(found, "NCCL_DEBUG=INFO - a variable of NCCL")
    assert (known.level, known.advice) == ("ok", "")
    assert _about(found, "NCCL's variables are described at https://docs.nvidia.com").level == "ok"
    wrong = _about(found, "NCCL_P2P_DISABEL=1 - unknown: NCCL does not read it")
    assert wrong.level == "problem"
    assert wrong.advice == "did you mean NCCL_P2P_DISABLE (a variable of NCCL)?"
    unread = _about(found, "NCCL_ALGO=ring - unknown: NCCL does not read it")
    assert (unread.level, unread.advice) == ("note", "unset NCCL_ALGO")
    for facts in ([], [_cuda(path=str(tmp_path / "none"))]):
        found = list(variables.examine({"NCCL_DEBUG": "INFO"}, facts, files=()))
        assert _about(found, "a variable of NCCL, which was not loaded").level == "note"


def test_other_sources_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.touch()
    given = {"CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": "/opt/libnccl.so.2", "WORLD_SIZE": "2"}
    found = list(variables.examine(given, [], files=[str(file), str(tmp_path / "none")]))
    assert _about(found, f"NCCL also reads {file}")
    assert "hides all GPUs" in _about(found, "CUDA_VISIBLE_DEVICES").text
    assert _about(found, "LD_PRELOAD").level == "note"
    assert _about(found, "WORLD_SIZE set, but not RANK").advice.startswith("start the script with")
    assert _about(found, "no variable of NCCL, hostnccl or pynccl is set").level == "ok"
    whole = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert not any("RANK" in one.text for one in variables.examine(whole, [], files=()))
