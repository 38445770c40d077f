"""Checks the files for a public host: workflows, forms of issues, dependabot, CITATION.cff.

    python -m tools.workflows        # every check; `make lint` runs it

The files must match their schemas, which check-jsonschema has. Of the workflows, each command is
dry-run for every row of its matrix: a make target is one of the Makefile and `make -n` accepts it,
a script is there and executable, a module is one of this repository. Expressions use only what
their workflow defines. The exit status is 1 where something is wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

__all__ = [
    "check_command",
    "check_repository",
    "check_schemas",
    "check_workflow",
    "load",
    "rows",
]

_ROOT = Path(__file__).resolve().parents[1]
_SCHEMAS = {
    "vendor.github-workflows": (".github/workflows/*.yml",),
    "custom.github-workflows-require-timeout": (".github/workflows/*.yml",),
    "vendor.dependabot": (".github/dependabot.yml",),
    "vendor.github-issue-forms": (".github/ISSUE_TEMPLATE/[!c]*.yml",),
    "vendor.github-issue-config": (".github/ISSUE_TEMPLATE/config.yml",),
    "vendor.citation-file-format": ("CITATION.cff",),
}
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_NAME = re.compile(r"\b(matrix|inputs|github|runner|secrets|env|needs|steps)\.([\w-]+)")
_PERMISSIONS = {"contents": "read"}  # of a workflow; a job that needs more asks for itself
_DRY_RUN_S = 60


def load(path: Path) -> Any:  # noqa: ANN401 - what YAML has
    """The contents of a file of YAML 1.2."""
    return YAML(typ="safe").load(path)


def rows(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the matrix of a job; one empty row where it has none."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    more: list[dict[str, Any]] = matrix.pop("include", [])
    left_out: list[dict[str, Any]] = matrix.pop("exclude", [])
    product = [dict(zip(matrix, one, strict=True)) for one in itertools.product(*matrix.values())]
    found = [
        row for row in product if not any(one.items() <= row.items() for one in left_out) and row
    ]
    # Of `include`, what fits a row is added to it; what fits none is a row of its own.
    alone = []
    for one in more:
        fitting = [
            row for row in found if all(row[key] == one[key] for key in one if key in matrix)
        ]
        for row in fitting:
            row.update(one)
        if not fitting:
            alone.append(dict(one))
    return (found + alone) or [{}]


def check_workflow(workflow: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a workflow, as text."""
    if "permissions" not in workflow:
        yield "it does not say its permissions"
    elif workflow["permissions"] not in (_PERMISSIONS, {}):
        yield f"its permissions are {workflow['permissions']}; a job that needs more asks itself"
    dispatch = (workflow["on"] if isinstance(workflow["on"], dict) else {}).get("workflow_dispatch")
    inputs = set((dispatch or {}).get("inputs", {}))
    for name, job in workflow["jobs"].items():
        for problem in _check_job(job, inputs, set(workflow["jobs"])):
            yield f"job {name}: {problem}"


def _check_job(job: Mapping[str, Any], inputs: set[str], jobs: set[str]) -> Iterator[str]:
    matrix = rows(job)
    known = {
        "matrix": set[str].intersection(*(set(row) for row in matrix)),
        "inputs": inputs,
        "needs": jobs,
        "steps": {step["id"] for step in job.get("steps", []) if "id" in step},
    }
    for text in _expressions(job):
        for context, name in _NAME.findall(text):
            if context in known and name not in known[context]:
                yield f"{text!r}: there is no {context}.{name}"
    if any("matrix" in text for text in _expressions(job.get("runs-on"))):
        return  # the machine is that of the row
    for row in matrix:
        for step in job.get("steps", []):
            for line in _lines(step.get("run", ""), row):
                if problem := check_command(line):
                    yield f"{line!r}: {problem}"
            path = step.get("with", {}).get("path")
            if "upload-artifact" in step.get("uses", "") and path and _is_tracked_folder(path):
                yield f"{path!r}, which is uploaded, is not there"


def _is_tracked_folder(path: str) -> bool:
    """Whether a path should be in the repository and is not: not what a job builds."""
    first = path.partition("/")[0]
    return first not in ("dist", "build", "wheelhouse") and not (_ROOT / first).exists()


def _expressions(value: object) -> Iterator[str]:
    """All expressions in a part of a workflow; the conditions of steps are ones as a whole."""
    if isinstance(value, str):
        yield from _EXPRESSION.findall(value)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if key == "if" and isinstance(one, str) and "${{" not in one:
                yield one
            else:
                yield from _expressions(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _expressions(one)


def _lines(script: str, row: Mapping[str, Any]) -> Iterator[str]:
    """The commands of a step, with the values of a row of the matrix."""

    def value(found: re.Match[str]) -> str:
        context, _, name = found[1].partition(".")
        return str(row.get(name, "x")) if context == "matrix" else "x"

    joined = script.replace("\\\n", " ")
    for line in _EXPRESSION.sub(value, joined).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield " ".join(line.split())


def check_command(line: str) -> str:
    """What is wrong with a command of a job; "" where nothing is.

    A job runs what a developer can run as well: make targets, scripts and modules of the
    repository. Packages of the system, releases of the host and removed files are the exceptions.
    """
    words = shlex.split(line)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    match words:
        case (
            []
            | ["sudo", "apt-get", *_]
            | ["gh", "release", *_]
            | ["rm", *_]
            | ["pipx", "run", "uv", *_]
        ):
            return ""
        case ["make", *arguments]:
            return _check_make(arguments)
        case ["python" | "python3", "-m", module, *_]:
            file = Path(*module.split("."))
            there = any((_ROOT / path).exists() for path in (f"{file}.py", file / "__init__.py"))
            return "" if there else f"module {module} is not in the repository"
        case [script, *_] if "/" in script:
            return _check_script(script)
    return "it is neither a make target nor a script of the repository"


def _check_script(name: str) -> str:
    path = _ROOT / name
    if not path.is_file():
        return f"{name} is not in the repository"
    return "" if os.access(path, os.X_OK) else f"{name} is not executable"


def _check_make(words: Sequence[str]) -> str:
    targets = [word for word in words if "=" not in word and not word.startswith("-")]
    known = set(re.findall(r"^([a-z][a-z-]*):", (_ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in targets:
        if target not in known:
            return f"the Makefile has no target {target}"
    command = ["make", "--dry-run", "--no-print-directory", *words]
    done = subprocess.run(
        command, cwd=_ROOT, check=False, capture_output=True, text=True, timeout=_DRY_RUN_S
    )
    return "" if done.returncode == 0 else f"make --dry-run: {done.stderr.strip()}"


def check_schemas(root: Path) -> Iterator[str]:
    """Which files do not match their schemas."""
    for schema, patterns in _SCHEMAS.items():
        files = [str(path) for pattern in patterns for path in sorted(root.glob(pattern))]
        if not files:
            yield f"there is no {' or '.join(patterns)}"
            continue
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
        types = ["--force-filetype", "yaml"] if schema.endswith("citation-file-format") else []
        done = subprocess.run(
            [*command, *types, *files], check=False, capture_output=True, text=True, timeout=60
        )
        if done.returncode != 0:
            yield f"{schema}: {done.stdout}{done.stderr}".strip()


def check_repository() -> Iterator[str]:
    """What is wrong with the files of this repository, as text."""
    yield from check_schemas(_ROOT)
    for path in sorted((_ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = load(path)
        for problem in check_workflow(workflow):
            yield f"{path.name}: {problem}"
    for number, line in enumerate((_ROOT / ".ci" / "run").read_text().splitlines(), 1):
        if line.startswith("make ") and (problem := check_command(line)):
            yield f".ci/run:{number}: {problem}"
    yield from _check_versions()
    owners = (_ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    for line in owners:
        words = line.split()
        if words and not words[0].startswith("#") and (len(words) < 2 or not _owned(words[0])):
            yield f"CODEOWNERS: {line!r} has no owner, or no file"


def _owned(pattern: str) -> bool:
    return pattern == "*" or any(_ROOT.glob(pattern.strip("/")))


def _check_versions() -> Iterator[str]:
    """The versions that more than one file has."""
    project = (_ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"', project, re.MULTILINE)
    cited = load(_ROOT / "CITATION.cff")["version"]
    if version and str(cited) != version[1]:
        yield f"CITATION.cff has version {cited}, pyproject.toml {version[1]}"
    python = re.search(r'^requires-python = ">=([\d.]+)"', project, re.MULTILINE)
    methods = json.loads((_ROOT / "tests" / "c10d" / "versions.json").read_text())
    torches = sorted({_numbers(one) for found in methods.values() for one in found})
    for job in load(_ROOT / ".github" / "workflows" / "ci.yml")["jobs"].values():
        for row in rows(job):
            if python and "python" in row and _numbers(row["python"]) < _numbers(python[1]):
                yield f"ci.yml: Python {row['python']} is older than {python[1]}"
            if "torch" in row and not torches[0] <= _numbers(row["torch"])[:2] <= torches[-1]:
                yield f"ci.yml: torch {row['torch']} is not supported (tests/c10d/versions.json)"


def _numbers(version: object) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(version))))


def main() -> int:
    """Print what is wrong; the exit status."""
    problems = list(check_repository())
    for problem in problems:
        print(problem)
    if not problems:
        print("the files for a public host: no problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
