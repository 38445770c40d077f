"""Runs the tests on an instrumented build and writes which lines they run to docs/quality.md.

    python -m tools.coverage [--keep] [--no-double] [--tests "tests/nccl -k group"]

Python is measured by coverage.py, in all processes that the tests start; C++ by gcov, of the
extension module and hostnccl, and summed by gcovr. The backend of torch.distributed (csrc/c10d) and
what only compiles for GPUs (csrc/device) are not in these builds. Both parts of `make test` run:
the tests on the double, then the others. Everything is in build/coverage; the reports for a browser
are in build/coverage/python and build/coverage/cpp.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import trees

__all__ = ["Counts", "by_folder", "table"]

_FOLDER = trees.ROOT / "build" / "coverage"
_TREE = _FOLDER / "tree"
_CMAKE = _FOLDER / "cmake"
_DATA = _FOLDER / "data"
_DOCUMENT = trees.ROOT / "docs" / "quality.md"
# -Og: without it the kernels take minutes where tests move megabytes.
_FLAGS = "-Og -g1 --coverage -fprofile-update=atomic -fprofile-abs-path"
_CONFIGURATION = f"""
[run]
source_pkgs = pynccl
branch = true
parallel = true
data_file = {_DATA}/python
patch = subprocess, _exit
sigterm = true
disable_warnings = no-data-collected, module-not-measured, couldnt-parse

[report]
exclude_also =
  if TYPE_CHECKING:
  @overload
"""
_TESTS_S = 7200
_NO_TESTS = 5  # pytest's status where nothing was selected


@dataclass
class Counts:
    """Lines and branches of a file or a folder, and how many of them the tests ran."""

    files: int = 0
    lines: int = 0
    ran: int = 0
    branches: int = 0
    taken: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(vars(self).values(), vars(other).values())))  # noqa: B905


def by_folder(files: Mapping[str, Counts]) -> dict[str, Counts]:
    """The sums of each folder, without those of the folders in it."""
    folders: dict[str, Counts] = defaultdict(Counts)
    for name, counts in files.items():
        folders[name.rpartition("/")[0]] += counts
    return dict(sorted(folders.items()))


def table(language: str, files: Mapping[str, Counts]) -> list[str]:
    """The lines of a table by folder, with the sum at the end."""
    rows = [*by_folder(files).items(), ("**all**", sum(files.values(), Counts()))]
    lines = [
        f"| {language} | files | lines | of these ran | of the branches |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, counts in rows:
        lines.append(
            f"| {name} | {counts.files} | {counts.lines} | {_share(counts.ran, counts.lines)} "
            f"| {_share(counts.taken, counts.branches)} |"
        )
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _build() -> None:
    trees.synchronise(_TREE)
    options = ["-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS={_FLAGS}"]
    options += ["-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF"]
    options += [f"-DCMAKE_PROJECT_INCLUDE={_TREE / 'tools' / 'coverage' / 'flush.cmake'}"]
    trees.configure(_TREE, _CMAKE, options)
    if not trees.build(_TREE, _CMAKE):
        sys.exit((_CMAKE / "errors.log").read_text()[-4000:])
    source = _TREE / "tools" / "coverage" / "at_exit.c"
    command = ["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(_library()), "-ldl"]
    subprocess.run(command, check=True, timeout=60)


def _library() -> Path:
    return _FOLDER / "at_exit.so"


def _clear() -> None:
    for path in [*_CMAKE.rglob("*.gcda"), *_DATA.glob("*")]:
        path.unlink()
    _DATA.mkdir(parents=True, exist_ok=True)
    (_DATA / "configuration").write_text(_CONFIGURATION)


def _test(arguments: list[str], *, double: bool) -> dict[str, int]:
    """Run the tests; how many passed, failed and were skipped."""
    run = ["-m", "coverage", "run", "--rcfile", str(_DATA / "configuration"), "-m", "pytest", "-q"]
    run += trees.WORKERS
    env = trees.environment(
        PYTHONPATH=str(_TREE),
        LD_PRELOAD=str(_library()),
        COVERAGE_RCFILE=str(_DATA / "configuration"),
    )
    outcomes: dict[str, int] = defaultdict(int)
    parts = [["-m", "not gpu"]]
    if double:
        parts.insert(0, ["-p", "tests.doubles.plugin", "-m", "gpu or double"])
    for part in parts:
        command = [sys.executable, *run, *part, *arguments]
        log = _FOLDER / f"tests-{len(part)}.log"
        with log.open("w") as file:
            done = subprocess.run(
                command, cwd=_TREE, env=env, check=False, stdout=file, timeout=_TESTS_S
            )
        last = log.read_text().rstrip().rpartition("\n")[2]
        print(f"pytest {shlex.join(part)}: {last}", flush=True)
        if done.returncode not in (0, 1, _NO_TESTS):
            sys.exit(f"pytest ended with status {done.returncode}: {log}")
        for count, what in re.findall(r"(\d+) (passed|failed|skipped|error)", last):
            outcomes[what] += int(count)
    return outcomes


def _add(name: str, outcomes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The outcomes of all runs whose counts are there, by what ran."""
    path = _DATA / "outcomes.json"
    runs: dict[str, dict[str, int]] = json.loads(path.read_text()) if path.exists() else {}
    runs[name] = dict(outcomes)
    path.write_text(json.dumps(runs))
    return runs


def _python() -> dict[str, Counts]:
    configuration = ["--rcfile", str(_DATA / "configuration")]
    report = _FOLDER / "python.json"
    for command in (
        ["combine", "--quiet", "--append", *configuration],
        ["json", "--quiet", *configuration, "--ignore-errors", "-o", str(report)],
        ["html", "--quiet", *configuration, "--ignore-errors", "-d", str(_FOLDER / "python")],
    ):
        subprocess.run(
            [sys.executable, "-m", "coverage", *command], check=True, cwd=_TREE, timeout=600
        )
    files: dict[str, Any] = json.loads(report.read_text())["files"]
    return {
        name: Counts(
            1,
            one["summary"]["num_statements"],
            one["summary"]["covered_lines"],
            one["summary"]["num_branches"],
            one["summary"]["covered_branches"],
        )
        for name, one in files.items()
        if one["summary"]["num_statements"]
    }


def _cpp() -> dict[str, Counts]:
    report, pages = _FOLDER / "cpp.json", _FOLDER / "cpp"
    pages.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "gcovr", "--root", str(_TREE), "--filter", f"{_TREE}/csrc/"),
        *("--exclude-throw-branches", "--gcov-ignore-parse-errors=negative_hits.warn"),
        "--gcov-ignore-parse-errors=suspicious_hits.warn",  # kernels run that often
        *("--gcov-ignore-errors=no_working_dir_found", "--merge-mode-functions=separate"),
        *("--json-summary", str(report), "--html-details", str(pages / "index.html"), str(_CMAKE)),
    ]
    subprocess.run(command, check=True, timeout=1800, stdout=subprocess.DEVNULL)
    files: Iterable[dict[str, Any]] = json.loads(report.read_text())["files"]
    return {
        one["filename"]: Counts(
            1,
            *(one["line_total"], one["line_covered"], one["branch_total"], one["branch_covered"]),
        )
        for one in files
    }


def main() -> int:
    """Build, run the tests, write the tables; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage")
    parser.add_argument("--tests", default="", help="arguments of pytest; all tests by default")
    parser.add_argument("--no-double", action="store_true", help="not those on the double")
    parser.add_argument("--keep", action="store_true", help="add to the counts of the last run")
    options = parser.parse_args()
    began = time.monotonic()
    _build()
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    if not options.keep:
        _clear()
    outcomes = _test(shlex.split(options.tests), double=not options.no_double)
    name = options.tests or "all tests"
    runs = _add(f"{name} but those on the double" if options.no_double else name, outcomes)
    python, cpp = _python(), _cpp()
    tests = [
        f"{name}: {', '.join(f'{count} {what}' for what, count in found.items())}"
        for name, found in runs.items()
    ]
    lines = [
        f"`make coverage` on {time.strftime('%Y-%m-%d')}. Tests that ran: {'; '.join(tests)}.",
        "",
        *table("Python", python),
        "",
        *table("C++", cpp),
    ]
    trees.replace_between(_DOCUMENT, "coverage", lines)
    print("\n".join(lines))
    print(f"{time.monotonic() - began:.0f} s in all")
    return 1 if outcomes.get("failed") or outcomes.get("error") else 0


if __name__ == "__main__":
    sys.exit(main())
