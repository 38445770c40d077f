"""Changes the sources, one change at a time, and tells which changes the tests do not notice.

    python -m tools.mutate [--count 20] [--seed 1] [--area csrc/core] [--keep]

Each area is a folder and the tests that are to notice changes of it. Of all changes of its files
but headers (tools.mutate.mutants), ``--count`` are chosen in each area by the seed. A change is
noticed where a test fails, or where the tests are not done within three times their usual time.
What does not compile does not count. The score goes to docs/quality.md; build/mutate has the copy
of the tree, and what each change gave in result.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import trees
from tools.mutate.mutants import Mutant, mutants

__all__ = ["AREAS", "chosen"]

_FOLDER = trees.ROOT / "build" / "mutate"
_TREE = _FOLDER / "tree"
_CMAKE = _FOLDER / "cmake"
_DOCUMENT = trees.ROOT / "docs" / "quality.md"
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
    "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
)
_USUAL_S = 600  # of the tests of an area, without a change
_WITH_GPU_CODE = ("csrc/core", "csrc/python/objects", "csrc/c10d")  # tested on the double, too
_NO_TESTS = 5  # pytest's status where nothing was selected


def _files(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


# A folder, and the files of tests that are to notice changes of it, those that find most first. A
# name without an ending is a folder, too.
AREAS: dict[str, tuple[str, ...]] = {
    "csrc/core": (
        *_files(
            "nccl", "communicator life streams async flight_record flight_dump comparison windows"
        ),
        *_files(
            "nccl", "memory plan groups deadlines recover inquiry graphs interrupt threads failures"
        ),
        "tests/trace/test_recorder.py",
        "tests/weights/test_transfer.py",
    ),
    "csrc/hostnccl/rendezvous": (
        *_files("hostnccl", "messages rendezvous_failures worlds death_in_init other_users"),
        *_files("nccl", "communicator nonblocking encryption interrupt"),
        "tests/reliability/test_making.py",
    ),
    "csrc/hostnccl/communicator": (
        *_files("hostnccl", "mismatch worlds tuning death deadlock interactions reasons"),
        *_files("nccl", "collectives communicator windows one_sided life recover"),
    ),
    "csrc/hostnccl/operations": (
        *_files("nccl", "collectives values operators one_sided windows groups"),
        *_files("hostnccl", "interactions numbers tuning mismatch"),
    ),
    "csrc/hostnccl/group": (
        *_files("nccl", "groups simulate coll_config plan rules streams nonblocking"),
        *_files("hostnccl", "interactions strict deadlock"),
    ),
    "csrc/hostnccl/lifecycle": (
        *_files("nccl", "life communicator recover revoke suspension nonblocking leaks memory"),
        *_files("hostnccl", "strict death"),
    ),
    "csrc/python/convert": (
        *_files("nccl", "arguments buffers array_kinds array_values operators one_sided"),
        "tests/raw",
        "tests/mirror/test_mirror_collectives.py",
    ),
    "csrc/python/collectives": (
        *_files("nccl", "arguments collectives one_sided barrier groups plan buffers coll_config"),
        "tests/package/test_random_arguments.py",
    ),
    "csrc/python/objects": (
        *_files(
            "nccl", "communicator life arguments buffers groups plan streams windows memory graphs"
        ),
        *_files(
            "nccl", "borrow coll_config device_comm simulate flight_record inquiry suspension peers"
        ),
        "tests/trace/test_recorder.py",
        "tests/raw",
    ),
    "csrc/c10d": (
        *_files("c10d", "collectives messages against_torch work membership errors hooks device"),
        *_files("c10d", "windows time_estimates"),
        *_files("c10d", "lending allocation interrupts pipelines training"),
    ),
    "pynccl/mirror": (
        "tests/mirror",
        *_files("c10d", "collectives messages against_torch work errors"),
    ),
    "pynccl/weights": ("tests/weights",),
}


@dataclass
class Outcome:
    """What the tests said of a mutant: "noticed", "late", "survived" or "invalid"."""

    area: str
    seed: int
    mutant: Mutant
    status: str
    seconds: float
    noticed_by: str = ""


def _earlier() -> list[Outcome]:
    path = _FOLDER / "result.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return [Outcome(**{**one, "mutant": Mutant(**one["mutant"])}) for one in found]


def chosen(area: str, count: int, seed: int, root: Path = trees.ROOT) -> list[Mutant]:
    """The changes that the seed chooses, in the order of the files: as many of each file."""
    rng = random.Random(seed)
    files = sorted(
        path.relative_to(root).as_posix()
        for path in (root / area).rglob("*")
        if path.suffix in (".cpp", ".py")
    )
    by_file = []
    for file in files:
        found = mutants(file, (root / file).read_text())
        rng.shuffle(found)
        by_file.append(found)
    taken: list[Mutant] = []
    while len(taken) < count and any(by_file):
        order = [found for found in by_file if found]
        rng.shuffle(order)
        taken += [found.pop() for found in order[: count - len(taken)]]
    return sorted(taken, key=lambda one: (one.file, one.begin))


def _test(area: str, seconds: float) -> tuple[str, float, str]:
    """Run the tests of an area until the first failure.

    Returns:
        "survived", "noticed" or "late", the time, and the test that failed.
    """
    parts = [["-m", "not gpu"]]
    if area in _WITH_GPU_CODE:
        parts.append(["-p", "tests.doubles.plugin", "-m", "gpu or double"])
    env = trees.environment(PYTHONPATH=str(_TREE))
    began = time.monotonic()
    path = _FOLDER / "tests.log"
    for part in parts:
        command = [sys.executable, "-m", "pytest", "-x", "-q", *part, *AREAS[area], *trees.WORKERS]
        with path.open("w") as log:
            process = subprocess.Popen(
                command, cwd=_TREE, env=env, stdout=log, stderr=log, start_new_session=True
            )
            try:
                failed = process.wait(seconds) not in (0, _NO_TESTS)
            except subprocess.TimeoutExpired:
                return "late", time.monotonic() - began, ""
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if failed:
            test = re.search(r"^(?:FAILED|ERROR) (\S+)", path.read_text(), re.MULTILINE)
            return "noticed", time.monotonic() - began, test[1] if test else "pytest itself"
    return "survived", time.monotonic() - began, ""


def _try(area: str, seed: int, mutant: Mutant, seconds: float) -> Outcome:
    path = _TREE / mutant.file
    source = path.read_text()
    began = time.monotonic()
    path.write_text(mutant.apply(source))
    failed = ""
    try:
        # The tests build csrc/c10d themselves.
        if path.suffix != ".py" and area != "csrc/c10d" and not trees.build(_TREE, _CMAKE):
            status = "invalid"
        else:
            status, _, failed = _test(area, seconds)
    finally:
        path.write_text(source)
    return Outcome(area, seed, mutant, status, time.monotonic() - began, failed)


def _report(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        "| area | seeds | changes | a test failed | not done in time | not noticed | score |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for area in [*AREAS, "**all**"]:
        own = [one for one in outcomes if one.area == area or area not in AREAS]
        own = [one for one in own if one.status != "invalid"]
        counts = [
            sum(one.status == what for one in own) for what in ("noticed", "late", "survived")
        ]
        score = f"{100 * (len(own) - counts[2]) / len(own):.0f} %" if own else "-"
        seeds = ", ".join(str(seed) for seed in sorted({one.seed for one in own}))
        lines.append(
            f"| {area} | {seeds} | {len(own)} | {' | '.join(map(str, counts))} | {score} |"
        )
    survivors = [one.mutant for one in outcomes if one.status == "survived"]
    lines += ["", "Not noticed:", ""] if survivors else []
    lines += [f"* {one.file}:{one.line}: {one.text}" for one in survivors]
    return lines


def main() -> int:
    """Make the changes; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate")
    parser.add_argument("--count", type=int, default=20, help="changes of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--area", choices=AREAS, action="append", help="only these")
    parser.add_argument("--keep", action="store_true", help="go on: keep what earlier runs gave")
    parser.add_argument("--list", action="store_true", help="print the changes, and make none")
    options = parser.parse_args()
    plans = {area: chosen(area, options.count, options.seed) for area in options.area or AREAS}
    if options.list:
        for area, plan in plans.items():
            for one in plan:
                print(f"{area}: {one.file}:{one.line}: {one.text}")
        return 0
    outcomes = _earlier() if options.keep else []
    done = {(one.mutant.file, one.mutant.begin, one.mutant.new) for one in outcomes}
    _prepare()
    for area, plan in plans.items():
        usual, seconds, failed = _test(area, _USUAL_S)
        if usual != "survived":
            sys.exit(f"{area}: {failed or usual} without a change: {_FOLDER / 'tests.log'}")
        print(f"{area}: {len(plan)} changes; the tests take {seconds:.0f} s", flush=True)
        for one in plan:
            if (one.file, one.begin, one.new) in done:
                continue
            outcome = _try(area, options.seed, one, 3 * seconds + 20)
            outcomes.append(outcome)
            what = f"{outcome.status:8} {outcome.seconds:4.0f} s"
            by = f" ({outcome.noticed_by})" if outcome.noticed_by else ""
            print(f"  {what}  {one.file}:{one.line}: {one.text}{by}", flush=True)
            listed = [dataclasses.asdict(each) for each in outcomes]
            (_FOLDER / "result.json").write_text(json.dumps(listed, indent=1))
        if not trees.build(_TREE, _CMAKE):
            sys.exit(f"{area}: the sources do not compile after the changes")
    lines = _report(outcomes)
    if {one.area for one in outcomes} == set(AREAS):
        dated = f"`make mutate COUNT={options.count}` on {time.strftime('%Y-%m-%d')}:"
        trees.replace_between(_DOCUMENT, "mutants", [dated, "", *lines])
    print("\n".join(lines))
    return 0


def _prepare() -> None:
    trees.synchronise(_TREE)
    trees.configure(_TREE, _CMAKE, _OPTIONS)
    if not trees.build(_TREE, _CMAKE):
        sys.exit((_CMAKE / "errors.log").read_text()[-4000:])


if __name__ == "__main__":
    sys.exit(main())
