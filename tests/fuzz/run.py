"""Fuzzes the readers of untrusted bytes and the calls of the Python API, one target at a time.

    python -m tests.fuzz.run [--seconds 600] [--targets messages,trace] [BUILD_FOLDER]

The messages of hostnccl's rendezvous are parsed in C++ and fuzzed by libFuzzer, which requires
clang with its fuzzer runtime. The other targets are in Python and fuzzed by Atheris
(tests.fuzz.with_atheris). All targets share the given number of seconds. Inputs that increase the
coverage remain in BUILD_FOLDER/fuzz/corpus for the next run. Failing inputs are written to
BUILD_FOLDER/fuzz.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.cpp import compile_with_parts

__all__ = ["TARGETS", "compile_program", "fuzz"]

TARGETS = (
    "messages",
    "recording",
    "trace",
    "dump",
    "weights",
    "ras",
    "arguments",
)

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_ENGINE = (
    "base/error.cpp",
    "base/keys.cpp",
    "base/process.cpp",
    "base/record_socket.cpp",
    "rendezvous/messages.cpp",
)
_NEWEST_CLANG = 25


def compile_program(compiler: str, program: Path, own: list[str], flags: list[str]) -> None:
    """Compile sources of this folder with the parts of hostnccl that they use."""
    compile_with_parts(compiler, program, [_HERE / name for name in own], _ENGINE, flags)


def _clang() -> str:
    names = ("clang++", *(f"clang++-{version}" for version in range(_NEWEST_CLANG, 11, -1)))
    for name in names:
        if found := shutil.which(name):
            return found
    sys.exit("make fuzz needs clang++ with libFuzzer (Debian: clang); no clang++ is in PATH")


def _messages(seconds: int, folder: Path) -> list[str]:
    """Build the target of the messages. Return the command that fuzzes it."""
    clang = _clang()
    corpus = folder / "corpus" / "messages"
    corpus.mkdir(parents=True, exist_ok=True)
    sanitizers = "address,undefined"
    compile_program(clang, folder / "seeds", ["seeds.cpp", "messages.cpp"], [])
    compile_program(
        clang,
        folder / "messages",
        ["messages.cpp"],
        [f"-fsanitize=fuzzer,{sanitizers}", "-fno-sanitize-recover=all"],
    )
    subprocess.run([str(folder / "seeds"), "--write", str(corpus)], check=True, timeout=60)
    return [
        str(folder / "messages"),
        str(corpus),
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-print_final_stats=1",
        f"-artifact_prefix={folder}/",
    ]


def fuzz(target: str, seconds: int, folder: Path) -> str:
    """Fuzz one target.

    Args:
        target: one of TARGETS.
        seconds: how long to fuzz.
        folder: the folder for programs, logs and inputs.

    Returns:
        A line with the number of inputs and the coverage. If an input fails, the process exits.
    """
    corpus = str(folder / "corpus" / target)
    command = (
        _messages(seconds, folder)
        if target == "messages"
        else [sys.executable, "-m", "tests.fuzz.with_atheris", target, str(seconds), corpus]
    )
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{target}.log"
    with log.open("w") as file:
        result = subprocess.run(
            command, check=False, stdout=file, stderr=subprocess.STDOUT, timeout=seconds + 120
        )
    text = log.read_text(errors="replace")
    if result.returncode != 0:
        sys.exit(f"{text[-4000:]}\n{target} failed with status {result.returncode}")
    executions = re.findall(r"number_of_executed_units: (\d+)", text)
    coverage = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    edges, features, corpus = coverage[-1]
    return f"{executions[-1]} inputs: {edges} edges, {features} features, corpus of {corpus}"


def main() -> None:
    """Fuzz the selected targets, each for an equal part of the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--targets", default=",".join(TARGETS), help="separated by commas")
    parser.add_argument("folder", nargs="?", type=Path, default=_ROOT / "build")
    options = parser.parse_args()
    targets = options.targets.split(",")
    if unknown := [target for target in targets if target not in TARGETS]:
        parser.error(f"--targets: {unknown[0]!r} is not one of {', '.join(TARGETS)}")
    for target in targets:
        seconds = max(options.seconds // len(targets), 1)
        print(f"{target}: {fuzz(target, seconds, options.folder / 'fuzz')}", flush=True)


if __name__ == "__main__":
    main()
