"""Builds and runs the stress programs of hostnccl and of core under the sanitizers: first
ThreadSanitizer, then AddressSanitizer and UBSan.

    python -m tests.stress.run [BUILD_FOLDER]

Needs cmake and a C++ compiler with the sanitizers' runtimes.
"""

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
SANITIZERS = ("thread", "address,undefined")
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1 detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
DEADLINE_S = 300


def build(folder: Path, sanitizer: str, environment: dict[str, str]) -> None:
    jobs = str(os.cpu_count() or 1)
    for command in (
        ["cmake", "-S", str(SOURCES), "-B", str(folder), f"-DSANITIZER={sanitizer}"],
        ["cmake", "--build", str(folder), "--target", "stress", "stress_core", "--parallel", jobs],
    ):
        result = subprocess.run(
            command,
            check=False,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if result.returncode != 0:
            sys.exit(f"{result.stdout}\n{' '.join(command)} failed")


def main(builds: Path) -> None:
    # cmake may be installed in the virtual environment of this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **OPTIONS, "PATH": path, "HOSTNCCL_STRICT": "1"}
    environment["HOSTNCCL_CONNECT"] = "0"  # first operations are pending in some of its parts
    for sanitizer in SANITIZERS:
        folder = builds / f"stress-{sanitizer.replace(',', '-')}"
        build(folder, sanitizer, environment)
        print(f"stress under -fsanitize={sanitizer}", flush=True)
        # What is measured under a sanitizer must not become the thresholds of this machine.
        tuning = folder / "tuning"
        tuning.unlink(missing_ok=True)
        environment["HOSTNCCL_TUNING_FILE"] = str(tuning)
        core = [str(folder / "stress_core"), str(folder / "libhostnccl_sanitized.so")]
        for stress in ([str(folder / "stress")], core):
            result = subprocess.run(stress, check=False, env=environment, timeout=DEADLINE_S)
            if result.returncode != 0:
                sys.exit(f"{stress[0]} failed with status {result.returncode}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES.parents[1] / "build")
