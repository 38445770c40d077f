"""Proves that the table of torch's versions in docs/c10d.md is what tools/c10d_table.py makes, and
that what is recorded of the installed torch is true.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import c10d_table


def test_record_of_the_installed_torch() -> None:
    data, version = c10d_table.recorded(), c10d_table.installed()
    if version not in data["versions"]:
        pytest.skip(f"the table is of torch {', '.join(data['versions'])}")
    known = {name for name, has in data.items() if version in has} - {"versions"}
    assert known == c10d_table.facts(), "run python -m tools.c10d_table"


def test_table_is_current() -> None:
    made = c10d_table.page(c10d_table.recorded())
    assert c10d_table.PAGE.read_text() == made, "run python -m tools.c10d_table"


def test_table_has_all_methods() -> None:
    """A new method of torch needs a row, and a row is of what some torch has."""
    known = set(c10d_table.recorded()) - {"versions"}
    rows = [name for row in c10d_table.ROWS for name in (*row.facts, *row.default)]
    assert sorted(rows) == sorted(set(rows))
    assert set(rows) == known


HEADER = """
class Base : public c10d::Work, public std::enable_shared_from_this<Base> {
 public:
  explicit Base(int rank) : Work(rank), number_(count(rank)) {}
  bool wait(int timeout = f(1)) override;  // void synchronize() override;
#if defined(SOME) || (defined(OTHER) && VERSION > 2)
  bool isCompleted() override;
#endif
  struct Inner { int abort(); };
  at::Tensor sourceRank(long size, Options options = {}) override;
  float getDuration() const override { if (true) { exception(); } return 1; }
  void own() {}
  void getTimeout();
};
class Last final : public Base { std::vector<int> result() final { return {}; } };
struct Other final : c10d::Backend::Options { int x = 0; };
class Stranger : public Thing { void merge() override; };
"""


def test_overrides_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.h").write_text(HEADER)
    monkeypatch.setattr(c10d_table, "SOURCES", tmp_path)
    found = c10d_table.overridden(set(c10d_table.recorded())) - {"the entry point"}
    names = ("wait", "isCompleted", "sourceRank", "getDuration", "getTimeout", "result")
    assert found == {f"Work.{name}" for name in names}
