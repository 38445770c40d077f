"""Changes the sources, one change at a time, and tells which changes the tests do not notice.

    python -m tools.mutate [--count 20] [--seed 1] [--area groups] [--keep]

Each area is some files and the tests that are to notice changes of them. Of all changes of the
files (tools.mutate.mutants), ``--count`` are chosen in each area by the seed. A change is noticed
where a test fails, or where the tests are not done within three times their usual time. What does
not compile does not count. The score goes to docs/quality.md; build/mutate has the copy of the
tree, and what each change gave in result.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import trees
from tools.mutate.mutants import Mutant, mutants

__all__ = ["AREAS", "Area", "chosen"]

_FOLDER = trees.ROOT / "build" / "mutate"
_TREE = _FOLDER / "tree"
_CMAKE = _FOLDER / "cmake"
_DOCUMENT = trees.ROOT / "docs" / "quality.md"
_OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"),
    "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
)
_USUAL_S = 600  # of the tests of an area, without a change


@dataclass(frozen=True)
class Area:
    """Files, and the tests that are to notice changes of them, those that find most first."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "argument checks": Area(
        (
            "csrc/python/convert/buffer.cpp",
            "csrc/python/convert/cupy_array.cpp",
            "csrc/python/convert/dtype.cpp",
            "csrc/python/convert/interfaces.cpp",
            "csrc/python/convert/numpy_array.cpp",
            "csrc/python/convert/red_op.cpp",
            "csrc/python/convert/stream.cpp",
            "csrc/python/collectives/one_sided.cpp",
            "csrc/python/collectives/operation_factory.cpp",
            "csrc/hostnccl/api/arguments.cpp",
            "pynccl/libraries.py",
            "pynccl/mirror/base/checks.py",
        ),
        (
            "tests/nccl/test_arguments.py",
            "tests/nccl/test_buffers.py",
            "tests/nccl/test_array_kinds.py",
            "tests/nccl/test_array_values.py",
            "tests/nccl/test_one_sided.py",
            "tests/hostnccl/test_strict.py",
            "tests/package/test_libraries.py",
            "tests/mirror/test_mirror_collectives.py",
        ),
    ),
    "groups": Area(
        (
            "csrc/python/objects/batch.cpp",
            "csrc/python/objects/group.cpp",
            "csrc/hostnccl/communicator/operation_order.cpp",
            "csrc/hostnccl/group/coll_config.cpp",
            "csrc/hostnccl/group/dispatch.cpp",
            "csrc/hostnccl/group/group.cpp",
            "csrc/hostnccl/group/simulate.cpp",
        ),
        (
            "tests/nccl/test_groups.py",
            "tests/nccl/test_simulate.py",
            "tests/nccl/test_coll_config.py",
            "tests/nccl/test_plan.py",
            "tests/nccl/test_rules.py",
            "tests/nccl/test_streams.py",
            "tests/hostnccl/test_interactions.py",
        ),
    ),
    "rendezvous": Area(
        (
            "csrc/hostnccl/base/record_socket.cpp",
            "csrc/hostnccl/base/unique_id.cpp",
            "csrc/hostnccl/rendezvous/creation.cpp",
            "csrc/hostnccl/rendezvous/file_exchange.cpp",
            "csrc/hostnccl/rendezvous/handshake.cpp",
            "csrc/hostnccl/rendezvous/joined_ranks.cpp",
            "csrc/hostnccl/rendezvous/messages.cpp",
            "csrc/hostnccl/rendezvous/refusal.cpp",
            "csrc/hostnccl/rendezvous/rendezvous.cpp",
            "csrc/hostnccl/rendezvous/rendezvous_host.cpp",
        ),
        (
            "tests/nccl/test_communicator.py",
            "tests/hostnccl/test_messages.py",
            "tests/hostnccl/test_rendezvous_failures.py",
            "tests/hostnccl/test_death_in_init.py",
            "tests/nccl/test_nonblocking.py",
            "tests/hostnccl/test_worlds.py",
            "tests/hostnccl/test_other_users.py",
            "tests/reliability/test_making.py",
            "tests/nccl/test_encryption.py",
            "tests/nccl/test_interrupt.py",
        ),
    ),
    "counters": Area(
        (
            "csrc/core/communicator_issue.cpp",
            "csrc/core/flight_recorder.cpp",
            "csrc/core/trace_state.cpp",
            "csrc/hostnccl/communicator/agreement.cpp",
            "csrc/hostnccl/communicator/collective_state.cpp",
            "pynccl/trace/recording.py",
            "pynccl/flight/merged.py",
        ),
        (
            "tests/nccl/test_flight_record.py",
            "tests/hostnccl/test_mismatch.py",
            "tests/trace/test_recordings.py",
            "tests/nccl/test_communicator.py",
            "tests/trace/test_recorder.py",
            "tests/replay/test_one_sided.py",
            "tests/flight/test_analysis.py",
            "tests/nccl/test_flight_dump.py",
            "tests/nccl/test_threads.py",
        ),
    ),
}


@dataclass
class Outcome:
    """What the tests said of a mutant: "noticed", "late", "survived" or "invalid"."""

    area: str
    mutant: Mutant
    status: str
    seconds: float


def _kept(areas: Container[str]) -> list[Outcome]:
    """What earlier runs gave in other areas."""
    path = _FOLDER / "result.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return [
        Outcome(one["area"], Mutant(**one["mutant"]), one["status"], one["seconds"])
        for one in found
        if one["area"] not in areas
    ]


def chosen(area: Area, count: int, seed: int, root: Path = trees.ROOT) -> list[Mutant]:
    """The changes that the seed chooses, in the order of the files: as many of each file."""
    rng = random.Random(seed)
    by_file = []
    for file in area.files:
        found = mutants(file, (root / file).read_text())
        rng.shuffle(found)
        by_file.append(found)
    taken: list[Mutant] = []
    while len(taken) < count and any(by_file):
        order = [found for found in by_file if found]
        rng.shuffle(order)
        taken += [found.pop() for found in order[: count - len(taken)]]
    return sorted(taken, key=lambda one: (area.files.index(one.file), one.begin))


def _test(tests: Sequence[str], seconds: float) -> tuple[str, float]:
    """Run tests until the first failure: "survived", "noticed" or "late", and the time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu", *tests]
    command += ["-p", "no:cacheprovider", *trees.WORKERS]
    env = trees.environment(PYTHONPATH=str(_TREE), PYTHONDONTWRITEBYTECODE="1")
    began = time.monotonic()
    with (_FOLDER / "tests.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=_TREE, env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            status = "survived" if process.wait(seconds) == 0 else "noticed"
        except subprocess.TimeoutExpired:
            status = "late"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status, time.monotonic() - began


def _try(area: str, mutant: Mutant, tests: Sequence[str], seconds: float) -> Outcome:
    path = _TREE / mutant.file
    source = path.read_text()
    began = time.monotonic()
    path.write_text(mutant.apply(source))
    try:
        if path.suffix != ".py" and not trees.build(_TREE, _CMAKE):
            return Outcome(area, mutant, "invalid", time.monotonic() - began)
        status, _ = _test(tests, seconds)
    finally:
        path.write_text(source)
    return Outcome(area, mutant, status, time.monotonic() - began)


def _report(outcomes: Sequence[Outcome], count: int, seed: int) -> list[str]:
    lines = [
        f"`make mutate COUNT={count} SEED={seed}` on {time.strftime('%Y-%m-%d')}:",
        "",
        "| area | changes | a test failed | not done in time | not noticed | score |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for area in [*AREAS, "**all**"]:
        own = [one for one in outcomes if one.area == area or area not in AREAS]
        own = [one for one in own if one.status != "invalid"]
        counts = [
            sum(one.status == what for one in own) for what in ("noticed", "late", "survived")
        ]
        score = f"{100 * (len(own) - counts[2]) / len(own):.0f} %" if own else "-"
        lines.append(f"| {area} | {len(own)} | {' | '.join(map(str, counts))} | {score} |")
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
    parser.add_argument("--keep", action="store_true", help="with the results of other areas")
    parser.add_argument("--list", action="store_true", help="print the changes, and make none")
    options = parser.parse_args()
    areas = {name: AREAS[name] for name in options.area or AREAS}
    plans = {name: chosen(area, options.count, options.seed) for name, area in areas.items()}
    if options.list:
        for name, plan in plans.items():
            for one in plan:
                print(f"{name}: {one.file}:{one.line}: {one.text}")
        return 0
    trees.synchronise(_TREE)
    trees.configure(_TREE, _CMAKE, _OPTIONS)
    if not trees.build(_TREE, _CMAKE):
        sys.exit((_CMAKE / "errors.log").read_text()[-4000:])
    outcomes = _kept(areas) if options.keep else []
    for name, plan in plans.items():
        usual, seconds = _test(areas[name].tests, _USUAL_S)
        if usual != "survived":
            sys.exit(f"{name}: the tests fail without a change: {_FOLDER / 'tests.log'}")
        print(f"{name}: {len(plan)} changes; the tests take {seconds:.0f} s", flush=True)
        for one in plan:
            outcome = _try(name, one, areas[name].tests, 3 * seconds + 20)
            outcomes.append(outcome)
            what = f"{outcome.status:8} {outcome.seconds:4.0f} s"
            print(f"  {what}  {one.file}:{one.line}: {one.text}", flush=True)
            listed = [dataclasses.asdict(each) for each in outcomes]
            (_FOLDER / "result.json").write_text(json.dumps(listed, indent=1))
        if not trees.build(_TREE, _CMAKE):
            sys.exit(f"{name}: the sources do not compile after the changes")
    lines = _report(outcomes, options.count, options.seed)
    if {one.area for one in outcomes} == set(AREAS):
        trees.replace_between(_DOCUMENT, "mutants", lines)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
