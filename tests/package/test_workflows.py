"""Proves that the files for a public host pass their checks, and that the checks find commands,
expressions and permissions that are wrong.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ruamel.yaml")
pytest.importorskip("check_jsonschema")

from tools import workflows


def _workflow(*steps: dict[str, Any], **job: object) -> dict[str, Any]:
    return {
        "on": {"push": None, "workflow_dispatch": {"inputs": {"known": {"type": "boolean"}}}},
        "permissions": {"contents": "read"},
        "jobs": {"one": {"runs-on": "ubuntu-24.04", "steps": list(steps), **job}},
    }


def _problems(*steps: dict[str, Any], **job: object) -> list[str]:
    return list(workflows.check_workflow(_workflow(*steps, **job)))


def test_this_repository() -> None:
    assert list(workflows.check_repository()) == []


_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "old", "new", "schema"),
    [
        (".github/workflows/ci.yml", "runs-on:", "runs-in:", "github-workflows"),
        (".github/workflows/ci.yml", "timeout-minutes:", "name:", "require-timeout"),
        (".github/dependabot.yml", "weekly", "often", "dependabot"),
        (".github/ISSUE_TEMPLATE/bug.yml", "textarea", "textaera", "issue-forms"),
        (".github/ISSUE_TEMPLATE/config.yml", "true", "7", "issue-config"),
        ("CITATION.cff", "authors:", "writers:", "citation-file-format"),
    ],
)
def test_schemas(tmp_path: Path, file: str, old: str, new: str, schema: str) -> None:
    shutil.copytree(_ROOT / ".github", tmp_path / ".github")
    shutil.copy(_ROOT / "CITATION.cff", tmp_path)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    found = list(workflows.check_schemas(tmp_path))
    assert found
    assert any(schema in one for one in found)


@pytest.mark.parametrize(
    "line",
    [
        "make check",
        "make test-torch TORCH=2.11.0",
        ".ci/run",
        "python -m tools.dependencies",
        "sudo apt-get install --yes clang",
        "PYTHONHASHSEED=1 make lint",
    ],
)
def test_commands_that_are_right(line: str) -> None:
    assert workflows.check_command(line) == ""


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("make chekc", "no target chekc"),
        ("make check no-such", "no target no-such"),
        (".ci/walk", "not in the repository"),
        ("./README.md", "not executable"),
        ("python -m tools.no_such", "tools.no_such is not in the repository"),
        ("curl https://example.org", "neither a make target nor a script"),
    ],
)
def test_commands_that_are_wrong(line: str, part: str) -> None:
    assert part in workflows.check_command(line)


def test_every_row_of_a_matrix_is_checked() -> None:
    matrix = {"target": ["check", "chekc"], "python": ["3.10", "3.11"]}
    found = _problems(
        {"run": "# a comment\nmake \\\n  ${{ matrix.target }}"},
        strategy={"matrix": {**matrix, "exclude": [{"target": "chekc", "python": "3.10"}]}},
    )
    assert found == ["job one: 'make chekc': the Makefile has no target chekc"]


def test_rows() -> None:
    include = [{"a": 1, "c": 4}, {"a": 9, "b": 9}]
    matrix = {"a": [1, 2], "b": [3], "include": include, "exclude": [{"a": 2}]}
    assert workflows.rows({"strategy": {"matrix": matrix}}) == [
        {"a": 1, "b": 3, "c": 4},
        {"a": 9, "b": 9},
    ]
    assert workflows.rows({}) == [{}]


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ({"run": "make check PYTHON=${{ matrix.pyhton }}"}, "matrix.pyhton"),
        ({"if": "inputs.unknown", "run": "make check"}, "inputs.unknown"),
        ({"if": "${{ steps.gone.outcome }}", "run": "make check"}, "steps.gone"),
        ({"with": {"x": "${{ needs.other.result }}"}, "uses": "a/b@v1"}, "needs.other"),
    ],
)
def test_expressions_without_a_definition(step: dict[str, Any], name: str) -> None:
    (found,) = _problems(step, strategy={"matrix": {"python": ["3.11"]}})
    assert f"there is no {name}" in found


def test_expressions_with_a_definition() -> None:
    step = {"if": "inputs.known && matrix.python == '3.11'", "run": "make check", "id": "own"}
    other = {"if": "${{ steps.own.outcome == 'failure' }}", "run": "make check"}
    assert _problems(step, other, strategy={"matrix": {"python": ["3.11"]}}) == []


def test_permissions() -> None:
    workflow = _workflow()
    workflow["permissions"] = {"contents": "write"}
    (found,) = workflows.check_workflow(workflow)
    assert "its permissions are" in found
    del workflow["permissions"]
    assert list(workflows.check_workflow(workflow)) == ["it does not say its permissions"]


def test_a_folder_that_is_uploaded_must_be_there() -> None:
    step = {"uses": "actions/upload-artifact@v4", "with": {"path": "docs/results"}}
    assert _problems(step) == []
    step["with"] = {"path": "no/such"}
    assert _problems(step) == ["job one: 'no/such', which is uploaded, is not there"]
