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


def test_overrides_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = """
    class Base : public c10d::Work {
     public:
      bool wait(int timeout = f(1)) override;  // void late() override;
      struct Inner { int x; };
      float getDuration() const override { return 1; }
      void own();
    };
    class Last final : public Base { void abort() override; };
    struct Other final : c10d::Backend::Options { int x = 0; };
    class Stranger : public Thing { void merge() override; };
    """
    folder = tmp_path / "c10d"
    folder.mkdir()
    (folder / "some.h").write_text(header)
    monkeypatch.setattr(c10d_table, "SOURCES", folder)
    found = c10d_table.overridden() - {"the entry point"}
    assert found == {"Work.wait", "Work.getDuration", "Work.abort"}
