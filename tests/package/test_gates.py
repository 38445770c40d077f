"""Proves that the tools of docs/quality.md change sources where they say, and that subjects of
commits are checked.
"""

from __future__ import annotations

import pytest

from tools import commits
from tools.mutate.__main__ import AREAS, ROOT, chosen, without_effect
from tools.mutate.mutants import mutants

_CPP = """\
#if A < B
template <typename T, int N = 1 < 2>
std::vector<std::vector<int>> f(int a) {
  // a < b, and "a == b"
  if (int c = g(a); c < 3 && a == 4) {
    throw Error("a < b");
  }
  if (const auto* d = h()) use(d);
  static_assert(sizeof(a));
  log("x", a);
  total += a + 1;
  ++count;
  return true;
}
"""

_PYTHON = '''\
if TYPE_CHECKING:
    import c


def f(a, b):
    """a < b"""
    if a is None or a < b <= 3:
        raise ValueError("a < b")
    check(a >> b)
    a += 1
    x = a - b if not a else 0
    return True
'''


def _changes(file: str, source: str) -> set[str]:
    """The lines that are new in each change."""
    changes = set()
    for one in mutants(file, source):
        changed = one.apply(source).split("\n")
        (line,) = [new for old, new in zip(source.split("\n"), changed, strict=True) if old != new]
        assert source.split("\n")[one.line - 1] != line
        changes.add(line.strip())
    return changes


def test_changes_of_cpp() -> None:
    assert _changes("a.cpp", _CPP) == {
        "if (int c = g(a); c <= 3 && a == 4) {",
        "if (int c = g(a); c < 3 || a == 4) {",
        "if (int c = g(a); c < 3 && a != 4) {",
        "if (int c = g(a); !(c < 3 && a == 4)) {",
        ";",
        "total -= a + 1;",
        "total += a - 1;",
        "--count;",
        "return false;",
    }


def test_changes_of_python() -> None:
    assert _changes("a.py", _PYTHON) == {
        "if a is None and a < b <= 3:",
        "if a is None or a <= b <= 3:",
        "if a is None or a < b < 3:",
        "if not (a is None or a < b <= 3):",
        "pass",
        "a -= 1",
        "x = a + b if not a else 0",
        "x = a - b if not (not a) else 0",
        "return False",
    }


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
