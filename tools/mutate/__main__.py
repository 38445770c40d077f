"""Mutation testing: changes the sources one at a time and reports changes the tests do not notice.

    python -m tools.mutate [--count 20] [--seed 1] [--area csrc/comm] [--keep | --again]

An area is a folder and the tests that should notice changes in it. In each area the seed selects
``--count`` of all possible changes (tools.mutate.mutants) of its files, except headers. The tests
run sequentially in one process, in the order of AREAS, and some of the backend's again with torch
2.15, if the environment of `make test-torch` exists. A change is noticed if a test fails, or if the
tests twice exceed a limit far above their usual time. Changes that do not compile do not count, nor
do those that leave out a pause: they change when something happens, not what. Those listed in
docs/quality.md as without an effect are not tried and not part of the score. The scores are written
to docs/quality.md, one row per area and seed. build/mutate contains the copy of
the tree and result.json with the outcome of each change.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import pages
from tools.mutate.mutants import Mutant, mutants

__all__ = ["AREAS", "ROOT", "Outcome", "chosen", "report", "without_effect"]

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = ROOT / "build" / "mutate"
_TREE = _FOLDER / "tree"
_CMAKE = _FOLDER / "cmake"
_DOCUMENT = ROOT / "docs" / "quality.md"
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -D_GLIBCXX_ASSERTIONS",  # a wrong index ends the process
    "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
    "-DCMAKE_UNITY_BUILD_BATCH_SIZE=3",  # a change recompiles few other sources
)
_USUAL_S = 1800  # the limit for the tests of an area without a change
_BACKEND_FLAGS = ('"-O2"', '"-O0"')  # in compile_backend.py, for the copy
_WITH_GPU_CODE = (  # tested on the double, too
    "csrc/nccl",
    "csrc/comm",
    "csrc/watch",
    "csrc/python/convert",
    "csrc/python/comm",
    "csrc/python/device",
    "csrc/python/watch",
    "csrc/c10d",
    "pynccl/mirror",
)
_NEWER_TORCH = ROOT / "build" / "torch-2.15.0" / "bin" / "python"  # of `make test-torch`
_BUILD_S = 3600
_NO_TESTS = 5  # pytest's exit status if no test was selected


def _files(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


# Folders, and the test files that should notice changes in them, in execution order:
# cheap ones first, together about a minute of CPU time. A name without a suffix is a folder.
AREAS: dict[str, tuple[str, ...]] = {
    "csrc/nccl": (
        "tests/raw",
        *_files("nccl", "communicator failures threads interrupt values memory"),
        *_files("nccl", "device_comm streams"),
        "tests/weights/test_trust.py",
        "tests/doubles/test_cuda_path.py",
    ),
    "csrc/comm": (
        *_files("nccl", "communicator flight_record async streams plan graphs failures memory"),
        *_files("nccl", "groups threads interrupt windows life nonblocking deadlines device_comm"),
        *_files("nccl", "borrow deadlines_graphs overlap collectives"),
        "tests/trace/test_recorder.py",
        "tests/doubles/test_cuda_path.py",
        "tests/hostnccl/test_rendezvous_failures.py",
        "tests/mirror/test_mirror_work.py",
    ),
    "csrc/watch": (
        *_files("nccl", "flight_record comparison inquiry deadlines deadlines_graphs"),
        *_files("trace", "nvtx recorder recorder_graphs recordings"),
        "tests/doubles/test_cuda_path.py",
    ),
    "csrc/hostnccl/rendezvous": (
        *_files("nccl", "communicator encryption nonblocking"),
        *_files("hostnccl", "worlds"),
        "tests/reliability/test_making.py",
        *_files("hostnccl", "death_in_init rendezvous_failures"),
        "tests/nccl/test_one_sided.py",
        "tests/hostnccl/test_messages.py",
    ),
    "csrc/hostnccl/communicator": (
        *_files("hostnccl", "mismatch reasons worlds strict"),
        *_files("nccl", "nonblocking communicator values one_sided suspension coll_config"),
        *_files("hostnccl", "deadlock interactions tuning"),
        "tests/reliability/test_kill_matrix.py",
        *_files("nccl", "life recover"),
    ),
    "csrc/hostnccl/operations": (
        "tests/mirror/test_mirror_collectives.py",
        *_files("hostnccl", "mismatch device_api numbers interactions strict"),
        *_files("nccl", "values groups one_sided windows"),
        "tests/reliability/test_kill_matrix.py",
        *_files("hostnccl", "tuning death rendezvous_failures waiting"),
    ),
    "csrc/hostnccl/group": (
        *_files("nccl", "simulate plan streams nonblocking windows groups coll_config"),
        *_files("hostnccl", "interactions strict deadlock"),
    ),
    "csrc/hostnccl/lifecycle": (
        *_files("nccl", "communicator suspension nonblocking memory"),
        *_files("hostnccl", "strict interactions"),
        "tests/reliability/test_making.py",
        *_files("nccl", "leaks life recover interrupt"),
    ),
    "csrc/python/convert": (
        *_files("nccl", "arguments array_lifetimes memory array_values streams"),
        "tests/raw",
        "tests/mirror/test_mirror_collectives.py",
        *_files("nccl", "values one_sided"),
    ),
    "csrc/python/collectives": (
        *_files("nccl", "arguments array_lifetimes collectives plan memory streams graphs"),
        "tests/mirror/test_mirror_collectives.py",
        "tests/package/test_random_arguments.py",
        *_files("nccl", "coll_config groups one_sided"),
    ),
    "csrc/python/comm": (
        "tests/raw",
        *_files("nccl", "communicator arguments array_lifetimes simulate plan memory streams"),
        *_files("nccl", "graphs suspension coll_config groups"),
        *_files("nccl", "life windows borrow overlap deadlines"),
        *_files("nccl", "nonblocking one_sided"),
        "tests/hostnccl/test_program_exceptions.py",
        "tests/weights/test_tensors.py",
        "tests/c10d/test_traces.py",
    ),
    "csrc/python/device": _files("nccl", "device_comm windows memory"),
    "csrc/python/watch": (
        *_files("nccl", "comparison flight_record deadlines inquiry"),
        *_files("trace", "nvtx recorder recordings"),
    ),
    "csrc/c10d": (
        *_files("c10d", "collectives messages overlaps against_torch windows"),
        *_files("c10d", "registration time_estimates allocation interrupts errors hooks"),
        *_files("c10d", "work membership exit"),
        "tests/c10d/test_device.py",
    ),
    "pynccl/mirror": (
        *_files("mirror", "signatures mirror_collectives mirror_fast mirror_profiler"),
        *_files("mirror", "mirror_operators mirror_outside"),
        *_files("mirror", "mirror_groups mirror_p2p mirror_since mirror_work"),
        *_files("mirror", "mirror_launch mirror_relay mirror_lost_ranks"),
        *_files("c10d", "collectives messages overlaps against_torch work errors"),
    ),
    "pynccl/weights": (
        *_files("weights", "adapters page tensors trust versions"),
        *_files("weights", "shards gathering mistakes strangers"),
    ),
}
# The same for what only a newer torch has, in its environment if that exists.
_WITH_NEWER_TORCH = {"csrc/c10d": _files("c10d", "windows hooks work membership exit")}


@dataclass
class Outcome:
    """The outcome of a mutant: "noticed", "late", "survived", "invalid" or "no effect"."""

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


def chosen(area: str, count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """The changes selected by the seed, in file order, equally many per file."""
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
    files = [file for file in AREAS[area] if not file.startswith("tests/doubles/")]
    parts = [[sys.executable, "-m", "not gpu", *files]]
    if area in _WITH_GPU_CODE:
        double = ["-p", "tests.doubles.plugin", "-m", "gpu or double"]
        parts.append([sys.executable, *double, *AREAS[area]])
    if area in _WITH_NEWER_TORCH and _NEWER_TORCH.exists():
        parts.append([str(_NEWER_TORCH), "-m", "not gpu", *_WITH_NEWER_TORCH[area]])
    env = _environment(PYTHONPATH=str(_TREE))
    began = time.monotonic()
    path = _FOLDER / "tests.log"
    for python, *selected in parts:
        command = [python, "-m", "pytest", "-x", "-q", *selected]
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


def _build(area: str) -> bool:
    """Build the targets of an area's sources, and return whether they compile."""
    if not area.startswith("csrc/"):
        return True
    if area == "csrc/c10d":
        env = _environment(PYTHONPATH=str(_TREE))
        for python in filter(Path.exists, (Path(sys.executable), _NEWER_TORCH)):
            command = [str(python), "-m", "pynccl", "build-backend"]
            done = subprocess.run(command, check=False, cwd=_TREE, env=env, capture_output=True)
            if done.returncode != 0:
                return False
        return True
    target = "hostnccl" if area.startswith("csrc/hostnccl") else "_C"
    return _build_copy(_TREE, _CMAKE, target)


def _try(area: str, seed: int, mutant: Mutant, seconds: float) -> Outcome:
    path = _TREE / mutant.file
    source = path.read_text()
    began = time.monotonic()
    path.write_text(mutant.apply(source))
    status, failed = "invalid", ""
    try:
        if not mutant.drops_pause() and _build(area):
            status, _, failed = _test(area, seconds)
            if status == "late":  # other processes may have caused it
                status, _, failed = _test(area, seconds)
    finally:
        path.write_text(source)
    return Outcome(area, seed, mutant, status, time.monotonic() - began, failed)


# A line of docs/quality.md that lists a change without an effect: its file and its text.
_WITHOUT_EFFECT = re.compile(r"^\* (\S+): (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| (\S+) \| (\d+) \| .+$", re.MULTILINE)
_SURVIVOR = re.compile(r"^\* (\S+), seed (\d+): .+$", re.MULTILINE)


def without_effect(document: str) -> set[tuple[str, str]]:
    """The changes that the document lists as without an effect: their files and texts."""
    return set(_WITHOUT_EFFECT.findall(document))


def report(document: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the document's table and survivors, updated with these outcomes."""
    rows = {(row[1], int(row[2])): row[0] for row in _ROW.finditer(document) if row[1] in AREAS}
    tried = {(one.area, one.seed) for one in outcomes}
    for area, seed in tried:
        found = [one.status for one in outcomes if (one.area, one.seed) == (area, seed)]
        kinds = ("no effect", "noticed", "late", "survived")
        equal, noticed, late, survived = map(found.count, kinds)
        changes = noticed + late + survived
        score = f"{100 * (changes - survived) / changes:.0f} %" if changes else "-"
        rows[area, seed] = (
            f"| {area} | {seed} | {time.strftime('%Y-%m-%d')} | {changes + equal} | {equal} "
            f"| {noticed} | {late} | {survived} | {score} |"
        )
    areas = list(AREAS)
    survivors = [
        line[0] for line in _SURVIVOR.finditer(document) if (line[1], int(line[2])) not in tried
    ]
    survivors += [
        f"* {one.area}, seed {one.seed}: {one.mutant.file}:{one.mutant.line}: {one.mutant.text}"
        for one in outcomes
        if one.status == "survived"
    ]
    return [
        "| area | seed | on | changes | no effect | a test failed | not done in time "
        "| not noticed | score |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|",
        *(rows[key] for key in sorted(rows, key=lambda key: (areas.index(key[0]), key[1]))),
        *(["", "Not noticed:", "", *survivors] if survivors else []),
    ]


def main() -> int:
    """Test the changes, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate")
    parser.add_argument("--count", type=int, default=20, help="changes of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--area", choices=AREAS, action="append", help="only these")
    parser.add_argument("--keep", action="store_true", help="continue: keep earlier outcomes")
    parser.add_argument(
        "--again", action="store_true", help="like --keep, but retry changes that were not noticed"
    )
    parser.add_argument("--list", action="store_true", help="only print the changes")
    options = parser.parse_args()
    plans = {area: chosen(area, options.count, options.seed) for area in options.area or AREAS}
    if options.list:
        for area, plan in plans.items():
            for one in plan:
                print(f"{area}: {one.file}:{one.line}: {one.text}")
        return 0
    equal = without_effect(_DOCUMENT.read_text())
    outcomes = _kept(plans, equal, options) if options.keep or options.again else []
    done = [known.mutant for known in outcomes]
    _prepare()
    for area, plan in plans.items():
        if not _build(area):
            sys.exit(f"{area}: the sources do not compile")
        usual, seconds, failed = _test(area, _USUAL_S)
        if usual != "survived":
            sys.exit(f"{area}: {failed or usual} without a change: {_FOLDER / 'tests.log'}")
        print(f"{area}: {len(plan)} changes; the tests take {seconds:.0f} s", flush=True)
        for one in plan:
            if one in done:
                continue
            if (one.file, one.text) in equal:
                outcome = Outcome(area, options.seed, one, "no effect", 0, "")
            else:
                outcome = _try(area, options.seed, one, 4 * seconds + 60)
            outcomes.append(outcome)
            what = f"{outcome.status:8} {outcome.seconds:4.0f} s"
            by = f" ({outcome.noticed_by})" if outcome.noticed_by else ""
            print(f"  {what}  {one.file}:{one.line}: {one.text}{by}", flush=True)
            listed = [dataclasses.asdict(each) for each in outcomes]
            (_FOLDER / "result.json").write_text(json.dumps(listed, indent=1))
        _build(area)  # with the last change undone
    text = _DOCUMENT.read_text()
    lines = report(text, outcomes)
    _DOCUMENT.write_text(pages.replaced(text, "mutants", lines))
    print("\n".join(lines))
    return 0


def _kept(
    plans: dict[str, list[Mutant]], equal: set[tuple[str, str]], options: argparse.Namespace
) -> list[Outcome]:
    """The outcomes of earlier runs, without those of these plans that this run finds again."""
    kept = []
    for known in _earlier():
        if known.area in plans and known.seed == options.seed:
            tries_again = options.again and known.status == "survived"
            file_has_changed = known.mutant not in plans[known.area]
            listed = (known.mutant.file, known.mutant.text) in equal
            if tries_again or file_has_changed or listed or known.status == "no effect":
                continue
        kept.append(known)
    return kept


def _prepare() -> None:
    _synchronise(_TREE)
    compile_backend = _TREE / "pynccl" / "_internal" / "compile_backend.py"
    compile_backend.write_text(compile_backend.read_text().replace(*_BACKEND_FLAGS))
    # With ccache, undoing a change does not recompile its source.
    launcher = shutil.which("ccache")
    cached = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if launcher else []
    _configure(_TREE, _CMAKE, [*_OPTIONS, *cached])
    if not _build_copy(_TREE, _CMAKE):
        sys.exit((_CMAKE / "errors.log").read_text()[-4000:])


def _synchronise(tree: Path) -> None:
    """Make a folder a copy of the working tree. Unchanged files keep their timestamps."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    listed = tree / ".files"
    known = set(listed.read_text().split("\n")) if listed.exists() else set()
    current = {name for name in names if name and (ROOT / name).is_file()}
    for name in known - current:
        if name:
            (tree / name).unlink(missing_ok=True)
    for name in current:
        source, target = ROOT / name, tree / name
        content = source.read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        target.chmod(source.stat().st_mode)
    listed.write_text("\n".join(sorted(current)))


def _environment(**variables: str) -> dict[str, str]:
    """The environment for commands. cmake and ninja may be installed next to this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, **variables}


def _configure(tree: Path, folder: Path, options: Sequence[str]) -> None:
    """Configure the build of a copy."""
    pybind11 = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    command = ["cmake", "-S", str(tree), "-B", str(folder), "-G", "Ninja", *options]
    command += [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_PREFIX_PATH={pybind11}"]
    _run(command, _environment())


def _build_copy(tree: Path, folder: Path, target: str = "all") -> bool:
    """Build a target of a copy and install it in place. Return whether it compiles."""
    env = _environment()
    jobs = str(os.cpu_count() or 1)
    done = subprocess.run(
        ["cmake", "--build", str(folder), "--parallel", jobs, "--target", target],
        check=False, env=env, capture_output=True, text=True, timeout=_BUILD_S,
    )  # fmt: skip
    if done.returncode != 0:
        (folder / "errors.log").write_text(done.stdout + done.stderr)
        return False
    _run(["cmake", "--install", str(folder), "--prefix", str(tree)], env)
    return True


def _run(command: Sequence[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, check=False, env=env, capture_output=True, text=True, timeout=_BUILD_S
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\n{' '.join(command)} failed")


if __name__ == "__main__":
    sys.exit(main())
