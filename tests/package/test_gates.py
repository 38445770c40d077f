"""Proves that the changes of docs/quality.md exist and differ from the sources, and that commit
subjects are checked.
"""

from __future__ import annotations

import pytest

from tools import commits
from tools.mutate.__main__ import AREAS, ROOT, chosen, without_effect
from tools.mutate.mutants import mutants


@pytest.mark.parametrize("area", AREAS)
def test_areas(area: str) -> None:
    assert (ROOT / area).is_dir()
    assert all((ROOT / path).exists() for path in AREAS[area])
    changes = chosen(area, 20, 1)
    assert len(changes) == 20
    for mutant in changes:
        source = (ROOT / mutant.file).read_text()
        assert mutant.apply(source) != source


def test_changes_without_an_effect_exist() -> None:
    listed = without_effect((ROOT / "docs" / "quality.md").read_text())
    assert listed
    for file, text in sorted(listed):
        found = mutants(file, (ROOT / file).read_text())
        assert text in [one.text for one in found], f"docs/quality.md: {file}: {text}"


def test_pauses_do_not_count() -> None:
    source = "void f() {\n  sleep_on(a, b);\n  wait(a);\n  std::this_thread::sleep_for(c);\n}\n"
    assert [one.drops_pause() for one in mutants("a.cpp", source)] == [True, False, True]


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("core: report a failed operation from Event.synchronize", ""),
        ("csrc/core: report a failed event", ""),
        ("fixup! core: report a failed event", ""),
        ("Report a failed event", "does not begin with an area"),
        ("core: ", "does not begin with an area"),
        ("core: report a failed event; test it", "contains ';'"),
        (f"core: {'x' * 67}", "73 characters"),
    ],
)
def test_subjects_of_commits(subject: str, text: str) -> None:
    assert text in commits.problem(subject)
    assert bool(text) == bool(commits.problem(subject))
