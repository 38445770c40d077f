"""Builds and runs the stress programs of hostnccl and of the core under ThreadSanitizer, and under
AddressSanitizer with UBSan.

    python -m tests.stress.run [BUILD_FOLDER]

Requires cmake and a C++ compiler with the runtime libraries of the sanitizers.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
SANITIZERS = ("thread", "address,undefined")
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1 detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
DEADLINE_S = 600


def environment_of_cmake() -> dict[str, str]:
    """The environment, in which cmake may come from the virtual environment of this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def run(command: list[str], environment: dict[str, str], timeout: float | None = None) -> str:
    """Run a command and return its output. If it fails, exit with that output."""
    result = subprocess.run(
        command,
        check=False,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    if result.returncode != 0:
        sys.exit(f"{result.stdout}\n{' '.join(command)} failed with status {result.returncode}")
    return result.stdout


def stress(folder: Path, sanitizer: str, environment: dict[str, str]) -> str:
    """Build and run the programs under a sanitizer. Return their output."""
    jobs = str((os.cpu_count() or 1) // len(SANITIZERS) or 1)
    targets = ["--target", "stress", "stress_core", "--parallel", jobs]
    run(["cmake", "-S", str(SOURCES), "-B", str(folder), f"-DSANITIZER={sanitizer}"], environment)
    run(["cmake", "--build", str(folder), *targets], environment)
    # Measurements under a sanitizer must not become the thresholds of this machine.
    tuning = folder / "tuning"
    tuning.unlink(missing_ok=True)
    environment = {**environment, "HOSTNCCL_TUNING_FILE": str(tuning)}
    core = [str(folder / "stress_core"), str(folder / "libhostnccl_sanitized.so")]
    stress_hostnccl = [str(folder / "stress")]
    return run(stress_hostnccl, environment, DEADLINE_S) + run(core, environment, DEADLINE_S)


def main(builds: Path) -> None:
    environment = {**environment_of_cmake(), **OPTIONS, "HOSTNCCL_STRICT": "1"}
    environment["HOSTNCCL_CONNECT"] = "0"  # some scenarios leave a first operation pending
    folders = [builds / f"stress-{sanitizer.replace(',', '-')}" for sanitizer in SANITIZERS]
    # In parallel: one waits for the detection of deadlocks while the other compiles.
    with ThreadPoolExecutor() as pool:
        outputs = pool.map(stress, folders, SANITIZERS, repeat(environment))
        for sanitizer, output in zip(SANITIZERS, outputs, strict=True):
            print(f"stress under -fsanitize={sanitizer}\n{output}", end="", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES.parents[1] / "build")
