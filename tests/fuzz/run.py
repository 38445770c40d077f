"""Fuzzes the parser of hostnccl's rendezvous messages with libFuzzer.

    python -m tests.fuzz.run [--seconds 600] [BUILD_FOLDER]

Needs clang with its fuzzer runtime. What was found stays in BUILD_FOLDER/fuzz/corpus for the next
run; an input that fails is in BUILD_FOLDER/fuzz.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["compile_program", "fuzz"]

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_ENGINE = (
    "base/error.cpp",
    "base/record_socket.cpp",
    "base/secrets.cpp",
    "rendezvous/messages.cpp",
)
_NEWEST_CLANG = 25


def compile_program(compiler: str, program: Path, own: list[str], flags: list[str]) -> None:
    """Compile sources of this folder with the parts of hostnccl that they need."""
    sources = [str(_HERE / name) for name in own]
    sources += [str(_ROOT / "csrc" / "hostnccl" / name) for name in _ENGINE]
    command = [compiler, "-std=c++20", "-g", "-O1", *flags, f"-I{_ROOT / 'csrc'}", *sources]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=300)


def _clang() -> str:
    names = ("clang++", *(f"clang++-{version}" for version in range(_NEWEST_CLANG, 11, -1)))
    for name in names:
        if found := shutil.which(name):
            return found
    sys.exit("make fuzz needs clang++ with libFuzzer (Debian: clang), and there is none in PATH")


def fuzz(seconds: int, folder: Path) -> None:
    clang = _clang()
    corpus = folder / "corpus"
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
    log = folder / "log.txt"
    with log.open("w") as file:
        result = subprocess.run(
            [
                *(str(folder / "messages"), str(corpus), f"-max_total_time={seconds}"),
                *("-max_len=4096", "-print_final_stats=1", f"-artifact_prefix={folder}/"),
            ],
            check=False,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=seconds + 120,
        )
    text = log.read_text()
    if result.returncode != 0:
        sys.exit(f"{text[-4000:]}\nfailed with status {result.returncode}")
    executions = re.findall(r"number_of_executed_units: (\d+)", text)
    coverage = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    print(f"{executions[-1]} executions, coverage (edges, features, corpus): {coverage[-1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("folder", nargs="?", type=Path, default=_ROOT / "build")
    options = parser.parse_args()
    fuzz(options.seconds, options.folder / "fuzz")
