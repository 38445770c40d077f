"""Builds the extension module with AddressSanitizer and UBSan, and runs tests.stress.arguments.

    python -m tests.stress.module 1000000 --seed 0

The libraries that the module loads are not instrumented. tests.stress.run covers hostnccl.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11

from tests.stress.run import environment_of_cmake, run

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitize-module"
SITE = BUILD / "site"  # contains a copy of the package with the instrumented module
# The checks of UBSan that AddressSanitizer lacks. Checks of every pointer would double the code.
UNDEFINED = (
    "signed-integer-overflow,shift,bounds,float-cast-overflow,integer-divide-by-zero,enum,bool,"
    "return,unreachable,vla-bound,builtin,pointer-overflow"
)
FLAGS = f"-O1 -g1 -fsanitize=address,{UNDEFINED} -fno-sanitize-recover=all -fno-omit-frame-pointer"
OPTIONS = {
    # Python and torch do not free all of their memory at exit.
    "ASAN_OPTIONS": "detect_leaks=0 detect_stack_use_after_return=1 allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # the sanitizer sees the allocation of every object
}


def build(environment: dict[str, str]) -> None:
    """Build the module, and copy the package around it."""
    options = [
        "-DCMAKE_BUILD_TYPE=None",
        f"-DCMAKE_CXX_FLAGS={FLAGS}",
        "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_PREFIX_PATH={pybind11.get_cmake_dir()}",
    ]
    run(["cmake", "-S", str(ROOT), "-B", str(BUILD), *options], environment)
    jobs = str(os.cpu_count() or 1)
    run(["cmake", "--build", str(BUILD), "--target", "_C", "--parallel", jobs], environment)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "pynccl", SITE / "pynccl", ignore=shutil.ignore_patterns("_C.*.so"))
    for module in BUILD.glob("_C.*.so"):
        shutil.copy(module, SITE / "pynccl")


def main() -> int:
    """Build and run. Return the exit status."""
    environment = environment_of_cmake()
    build(environment)
    compiler = os.environ.get("CXX", "c++")
    libraries = [
        run([compiler, f"-print-file-name={name}"], environment).strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment |= {
        **OPTIONS,
        # The runtime of the sanitizer must be loaded first.
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)]),
    }
    # Not in the root folder, whose package contains the module without instrumentation.
    command = [sys.executable, "-m", "tests.stress.arguments", *sys.argv[1:]]
    return subprocess.run(command, check=False, env=environment, cwd=BUILD).returncode


if __name__ == "__main__":
    sys.exit(main())
