"""Environment variables: those that NCCL, hostnccl and pynccl read, and unknown ones."""

from __future__ import annotations

import difflib
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pynccl.libraries import PROVIDERS
from pynccl.tools.doctor.finding import Finding, Level
from pynccl.tools.doctor.library import Facts
from pynccl.tools.doctor.variable_table import NCCL, OF_TORCH, PYNCCL

__all__ = ["examine"]

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
    described = {name: text for one in facts for name, text in one.parameters.items()}
    library = next((one.path for one in facts if one.provider == "cuda" and not one.error), "")
    known = {**NCCL, **described, **PYNCCL}
    ours = sorted(name for name in environment if name.startswith(_OURS))
    for name in ours:
        yield _variable_finding(name, environment[name], known, bool(described), library)
    if not ours:
        yield _ok("no variable of NCCL, hostnccl or pynccl is set")
    yield from _value_findings(environment, facts)
    yield from _rendezvous_findings(environment)
    for name in files:
        path = Path(name).expanduser()
        if path.is_file():
            yield _note(f"NCCL also reads {path}")


def _variable_finding(
    name: str, value: str, known: Mapping[str, str], hostnccl: bool, library: str
) -> Finding:
    shown = name if name.endswith(_SECRET) else f"{name}={value}"
    text, advice = "", ""
    level: Level = "ok"
    if name in NCCL and library and not _names(library, name):
        text, level = f"{NCCL[name]}; the NCCL that was found does not read it", "note"
    elif name in known:
        text = known[name]
    elif _TEST_VARIABLES.fullmatch(name):
        text = "used by pynccl's own tests"
    elif name in OF_TORCH:
        text = f"torch's old name for TORCH_{name}; NCCL and pynccl do not read it"
        level, advice = "note", f"unset {name}"
    elif name.startswith("HOSTNCCL_") and not hostnccl:
        text, level = "a variable of hostnccl, which was not loaded", "note"
    elif name.startswith("NCCL_") and _names(library, name):
        text = f"undocumented, and known to {library}"
    else:
        reader = "NCCL" if name.startswith("NCCL_") else name.partition("_")[0].lower()
        text = f"unknown: {reader} does not read it"
        level, advice = "note", f"unset {name}"
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            level, advice = "problem", f"did you mean {close[0]} ({known[close[0]]})?"
    return Finding(_AREA, level, f"{shown} - {text}", advice)


def _names(library: str, name: str) -> bool:
    """Whether a library contains a text."""
    try:
        with (
            Path(library).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(name.encode() + b"\0") >= 0
    except (OSError, ValueError):  # the file is missing or empty
        return False


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
