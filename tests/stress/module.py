"""Builds the extension module with AddressSanitizer and UBSan, and runs tests.stress.arguments.

    python -m tests.stress.module 1000000 --seed 0

The libraries that the module loads are not instrumented; hostnccl has tests.stress.run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitize-module"
SITE = BUILD / "site"  # the package with the module
# Of UBSan what AddressSanitizer does not see; its checks of every pointer would double the code.
UNDEFINED = (
    "signed-integer-overflow,shift,bounds,float-cast-overflow,integer-divide-by-zero,enum,bool,"
    "return,unreachable,vla-bound,builtin,pointer-overflow"
)
FLAGS = f"-O1 -g1 -fsanitize=address,{UNDEFINED} -fno-sanitize-recover=all -fno-omit-frame-pointer"
OPTIONS = {
    # Python and torch do not free what they have at the end.
    "ASAN_OPTIONS": "detect_leaks=0 detect_stack_use_after_return=1 allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # every object is an allocation that the sanitizer knows
}


def build() -> None:
    """The module, and a copy of the package around it."""
    for command in (
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(BUILD),
            "-DCMAKE_BUILD_TYPE=None",
            f"-DCMAKE_CXX_FLAGS={FLAGS}",
            "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_PREFIX_PATH={_output(sys.executable, '-m', 'pybind11', '--cmakedir')}",
        ],
        ["cmake", "--build", str(BUILD), "--target", "_C", "--parallel", str(os.cpu_count() or 1)],
    ):
        result = subprocess.run(
            command, check=False, env=_environment(), capture_output=True, text=True
        )
        if result.returncode != 0:
            sys.exit(f"{result.stdout}{result.stderr}\n{' '.join(command)} failed")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "pynccl", SITE / "pynccl", ignore=shutil.ignore_patterns("_C.*.so"))
    for module in BUILD.glob("_C.*.so"):
        shutil.copy(module, SITE / "pynccl")


def _environment() -> dict[str, str]:
    # cmake may be installed in the virtual environment of this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Build and run; the exit status."""
    build()
    compiler = os.environ.get("CXX", "c++")
    libraries = [
        _output(compiler, f"-print-file-name={name}") for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {
        **_environment(),
        **OPTIONS,
        # The sanitizer's runtime must be the first library.
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)]),
    }
    # The root is not the current folder: its package has the other module.
    command = [sys.executable, "-m", "tests.stress.arguments", *sys.argv[1:]]
    return subprocess.run(command, check=False, env=environment, cwd=BUILD).returncode


if __name__ == "__main__":
    sys.exit(main())
