"""Checks csrc/abi against real releases of NCCL and CUDA, from names to layouts and exports.

    python -m tests.abi.run                    # everything; downloads the wheels to --cache once
    python -m tests.abi.run --header nccl.h    # only the names in a header; requires nothing else

Requires a C++ compiler ($CXX, else c++), pip and pyelftools, but no GPU, driver or CUDA toolkit.
Prints a line for each check, and exits with status 1 if one has failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.abi import declarations as decl
from tests.abi import device_checks, plugin_checks, static_checks, wheels
from tests.abi.declarations import Declarations
from tests.abi.names import check_names, check_own
from tests.abi.report import Report
from tests.abi.static_checks import Source

HERE = Path(__file__).resolve().parent
CHILD_SECONDS = 120


def compile_source(source: Source, file: Path, include: list[Path]) -> list[str]:
    """Compile a file of static assertions. Return a line for each failure."""
    file.write_text(source.text())
    command = [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", "-fsyntax-only"]
    command += ["-Wno-deprecated-declarations", f"-I{HERE}", f"-I{decl.ABI.parent}"]
    command += [f"-isystem{folder}" for folder in include] + [str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    failed = [re.sub(r".*static assertion failed[^:]*: ", "", line) for line in errors]
    return failed or done.stderr.splitlines()[:20] or [f"{command[0]}: status {done.returncode}"]


def check_compiled(report: Report, title: str, source: Source, file: Path, *cuda: Path) -> None:
    problems = compile_source(source, file, list(cuda))
    report.check(title, source.count, "static assertions", problems)


def check_loading(report: Report, title: str, library: Path, header_text: str) -> None:
    """Check that the real library loads and answers without a driver, in a process of its own."""
    version = decl.header_version(header_text)
    results = len(decl.declarations(header_text).enums["ncclResult_t"]) - 1
    command = [sys.executable, "-m", "tests.abi.loading", str(library.resolve())]
    command += [str(version), str(results)]
    # Without a visible device, a machine with a GPU behaves like one without. The loopback
    # interface exists even without a network.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "NCCL_SOCKET_IFNAME": "lo"}
    try:
        done = subprocess.run(
            command,
            cwd=HERE.parents[1],
            env=environment,
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problems, lines = [f"did not finish within {CHILD_SECONDS} seconds"], []
    else:
        lines = done.stdout.splitlines()
        problems = []
        if done.returncode != 0:
            last = done.stderr.splitlines()[-1:] or ["no message"]
            problems = [f"exited with {done.returncode} after {len(lines)} steps: {last[0]}"]
    report.check(f"{title}: the library without a driver", len(lines), "answers", problems)
    if lines and not problems:
        print(f"        {lines[-1]}", flush=True)


def check_release(
    report: Report, cache: Path, version: str, cuda: list[Path], ours: Declarations
) -> None:
    """Check everything about a release of NCCL."""
    from tests.abi.symbols import check_symbols  # the only part that requires pyelftools

    wheel = wheels.fetch(cache, wheels.NCCL, version)
    header = wheels.only(wheel, "nvidia/*/include/nccl.h")
    library = wheels.only(wheel, "nvidia/*/lib/libnccl.so.2")
    text = header.read_text()
    title = f"NCCL {version}"
    check_names(report, title, text, ours)
    source = static_checks.nccl_source(text, ours)
    file = cache / f"nccl-{version}.cpp"
    check_compiled(report, f"{title}: compiled with nccl.h", source, file, header.parent, *cuda)
    if decl.header_version(text) >= device_checks.OLDEST:
        source = device_checks.device_source(text)
        file = cache / f"nccl-device-{version}.cpp"
        title_of_device = f"{title}: compiled with nccl_device.h"
        check_compiled(report, title_of_device, source, file, header.parent, *cuda)
    check_symbols(report, title, library, header)
    plugin_checks.check_symbols(report, title, decl.header_version(text), library)
    check_loading(report, title, library, text)


def check_driver(report: Report, cache: Path, cuda: list[Path]) -> None:
    """Check the driver calls against cuda.h."""
    ours = decl.own("driver_types.h")
    title = f"CUDA {wheels.CUDA[0][1]}"
    source = static_checks.driver_source(ours)
    check_compiled(report, f"{title}: compiled with cuda.h", source, cache / "driver.cpp", *cuda)
    source = static_checks.symbol_source()
    check_compiled(report, f"{title}: symbols of cuda.h", source, cache / "symbols.cpp", *cuda)
    handles = {"kStreamLegacy": "CU_STREAM_LEGACY", "kStreamPerThread": "CU_STREAM_PER_THREAD"}
    macros = decl.header_macros(wheels.only(cuda[0], "cuda.h").read_text())
    text = (decl.ABI / "driver_types.h").read_text()
    problems = []
    for name, macro in handles.items():
        mine = re.search(rf"{name} = (\w+);", text)
        real = re.fullmatch(r"\(\(CUstream\)(\w+)\)", macros.get(macro, ""))
        if not mine or not real or int(mine[1], 0) != int(real[1], 0):
            problems.append(f"{name} is not {macro}")
    report.check(f"{title}: stream handles of cuda.h", len(handles), "constants", problems)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, default=decl.ABI.parents[1] / "build" / "abi")
    parser.add_argument("--nccl", action="append", metavar="VERSION", help="the only release")
    parser.add_argument("--header", type=Path, help="check only the names in this nccl.h")
    arguments = parser.parse_args()

    report = Report()
    ours = decl.own("nccl_types.h")
    check_own(report, ours)
    if arguments.header:
        text = arguments.header.read_text()
        check_names(report, f"NCCL {decl.header_version(text)}", text, ours)
    else:
        folders = [wheels.fetch(arguments.cache, *wheel) for wheel in wheels.CUDA]
        cuda = [wheels.only(folder, "nvidia/*/include") for folder in folders]
        check_driver(report, arguments.cache, cuda)
        layouts = plugin_checks.layout_source()
        check_compiled(report, "Plugins: layouts", layouts, arguments.cache / "plugins.cpp")
        for version in arguments.nccl or wheels.NCCL_VERSIONS:
            check_release(report, arguments.cache, version, cuda, ours)
    print(f"{report.failures} failures" if report.failures else "all checks of csrc/abi passed")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
