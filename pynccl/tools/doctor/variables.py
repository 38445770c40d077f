"""Environment variables: those that NCCL, hostnccl and pynccl read, and unknown ones."""

from __future__ import annotations

import difflib
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pynccl.libraries import PROVIDERS
from pynccl.tools.doctor.finding import Finding, Level
from pynccl.tools.doctor.library import Facts

__all__ = ["PYNCCL", "examine"]

PYNCCL: Final = {
    "PYNCCL_BUILT": "read by setup.py: the extension is already built (make)",
    "PYNCCL_CACHE": "the directory of components that are built at first use",
    "PYNCCL_CHECK": "every or a number: ranks compare their calls before they issue them",
    "PYNCCL_COMPAT_PROVIDER": "the provider of pynccl.compat.cupy_nccl",
    "PYNCCL_EXPLAIN": "makes NCCL load the plugin of nccl.explain()",
    "PYNCCL_FLIGHT_FILE": "the prefix of the files for flight records when a communicator fails",
    "PYNCCL_HOSTNCCL_LIBRARY": "the path of another libhostnccl.so",
    "PYNCCL_NCCL_DEVICE_LIBRARY": "the path of NCCL's device library (bitcode) for Triton",
    "PYNCCL_NCCL_INCLUDE": "the directory of nccl.h and nccl_device.h",
    "PYNCCL_NCCL_LIBRARY": "the path of libnccl.so.2",
    "PYNCCL_NVTX": "1: a range of NVTX for each operation",
    "PYNCCL_ON_TIMEOUT": "the reaction to an operation that takes too long: raise or abort",
    "PYNCCL_OPENRLHF": "set by the adapter of OpenRLHF, for the processes that vLLM starts",
    "PYNCCL_PROVIDER": "the default provider: cuda or host",
    "PYNCCL_RECORD": "records the operations of the process to this file",
    "PYNCCL_RECORD_LIMIT": "the maximum size of a recording, in bytes",
    "PYNCCL_TIMEOUT": "the time limit of an operation, in seconds",
    "PYNCCL_TRACE": "writes a trace of the process to this file",
    "PYNCCL_TUNING": "the tuning file, whose choices nccl.explain()'s plugin forces",
    "PYNCCL_WEIGHTS_KEY": "the key of sessions of pynccl.weights, which is secret",
    "PYNCCL_WERROR": "read by the build: warnings are errors",
}

_DOCUMENTATION = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_NAMES = re.compile(rb"NCCL_[A-Z0-9_]+(?=\0)")  # of variables, in a libnccl.so.2

_AREA = "environment"
_ok = partial(Finding, _AREA, "ok")
_note = partial(Finding, _AREA, "note")
_problem = partial(Finding, _AREA, "problem")
_OURS = ("NCCL_", "HOSTNCCL_", "PYNCCL_")
# Variables of the tests and of the build of the test double.
_TEST_VARIABLES = re.compile(r"PYNCCL_(TEST_.*|DOUBLE|BENCH_.*)")
_SECRET = "_KEY"  # values are not shown
_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FILES = ("/etc/nccl.conf", "~/.nccl.conf")


def examine(
    environment: Mapping[str, str], facts: Sequence[Facts], files: Sequence[str] = _FILES
) -> Iterator[Finding]:
    """Describe the variables that are set, and report those that no library reads.

    Args:
        environment: the variables.
        facts: the facts about the providers: the parameters of hostnccl, and the path of
            libnccl.so.2.
        files: NCCL's configuration files.
    """
    of_host = [name for one in facts for name in one.parameters]
    ours = sorted(name for name in environment if name.startswith(_OURS))
    with_nccl = any(name.startswith("NCCL_") for name in ours)
    library = next((one.path for one in facts if one.provider == "cuda" and not one.error), "")
    read = _names(library) if with_nccl else set()
    known = dict.fromkeys(read, "a variable of NCCL")
    known |= dict.fromkeys(of_host, "a parameter of hostnccl (`pynccl info --all` describes it)")
    known |= PYNCCL
    loaded = {"NCCL": bool(read), "HOSTNCCL": bool(of_host), "PYNCCL": True}
    for name in ours:
        yield _variable_finding(name, environment[name], known, loaded)
    if not ours:
        yield _ok("no variable of NCCL, hostnccl or pynccl is set")
    if with_nccl:
        yield _ok(f"NCCL's variables are described at {_DOCUMENTATION}")
    yield from _value_findings(environment, facts)
    yield from _rendezvous_findings(environment)
    for name in files:
        path = Path(name).expanduser()
        if path.is_file():
            yield _note(f"NCCL also reads {path}")


def _variable_finding(
    name: str, value: str, known: Mapping[str, str], loaded: Mapping[str, bool]
) -> Finding:
    shown = name if name.endswith(_SECRET) else f"{name}={value}"
    reader = name.partition("_")[0]
    who = reader if reader == "NCCL" else reader.lower()
    text, advice = "", ""
    level: Level = "ok"
    if name in known:
        text = known[name]
    elif _TEST_VARIABLES.fullmatch(name):
        text = "used by pynccl's own tests"
    elif not loaded[reader]:
        text, level = f"a variable of {who}, which was not loaded", "note"
    else:
        text = f"unknown: {who} does not read it"
        level, advice = "note", f"unset {name}"
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            level, advice = "problem", f"did you mean {close[0]} ({known[close[0]]})?"
    return Finding(_AREA, level, f"{shown} - {text}", advice)


def _names(library: str) -> set[str]:
    """The variables that a libnccl.so.2 reads: their names are texts in it."""
    try:
        with (
            Path(library).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return {name.decode() for name in _NAMES.findall(content)}
    except (OSError, ValueError):  # the file is missing or empty
        return set()


def _value_findings(environment: Mapping[str, str], facts: Sequence[Facts]) -> Iterator[Finding]:
    """Report unusable values."""
    provider = environment.get("PYNCCL_PROVIDER")
    if provider and provider not in PROVIDERS:
        yield _problem(
            f"PYNCCL_PROVIDER={provider} is not one of {', '.join(PROVIDERS)}",
            "unset it, or set it to one of them",
        )
    for one in facts:
        for text in one.wrong:
            yield _problem(text, "unset the variable or correct its value")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        hides = "which hides all GPUs" if visible.strip() in ("", "-1") else "the others are hidden"
        yield _note(f"CUDA_VISIBLE_DEVICES={visible}: {hides}")
    preload = environment.get("LD_PRELOAD", "")
    if "libnccl" in os.path.basename(preload) or "/libnccl" in preload:
        yield _note(f"LD_PRELOAD={preload}: every program of this shell uses this libnccl")


def _rendezvous_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report an incomplete set of the variables by which ranks find each other."""
    present = [name for name in _RENDEZVOUS if environment.get(name)]
    missing = [name for name in _RENDEZVOUS if not environment.get(name)]
    if present and missing:
        yield _note(
            f"{', '.join(present)} set, but not {', '.join(missing)}: init_process_group without "
            "arguments needs all four",
            "start the script with torchrun, or unset them",
        )
