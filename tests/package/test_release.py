"""Proves that the notes of a release are its section of the changelog, that the versions of Python
are the same wherever they are listed, that archives do not depend on when they are made, and that a
wheel is refused for what it lacks and for what it has too much.
"""

from __future__ import annotations

import importlib
import os
import re
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from tools import release

_ROOT = Path(__file__).parents[2]
_CHANGELOG = """# Changelog

## 0.2.0, not released yet
- New.

## 0.1.0, 2026-11-30
- First.
- Second,
  continued.

## 0.0.1, 2026-01-01
"""


def test_notes_are_one_section() -> None:
    assert release.notes(_CHANGELOG, "0.1.0") == "- First.\n- Second,\n  continued.\n"
    assert release.notes(_CHANGELOG, "0.2.0", draft=True) == "- New.\n"


@pytest.mark.parametrize(
    ("version", "draft", "text"),
    [
        ("0.2.0", False, "the heading of 0.2.0 says 'not released yet'"),
        ("0.3.0", True, "has no section about 0.3.0"),
        ("0.0.1", False, "the section about 0.0.1 is empty"),
        ("0.1", True, "has no section about 0.1"),
    ],
)
def test_what_is_no_release(version: str, draft: bool, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        release.notes(_CHANGELOG, version, draft=draft)


def test_the_changelog_of_this_version_has_notes() -> None:
    text = (_ROOT / "CHANGELOG.md").read_text()
    assert len(release.notes(text, release.version(), draft=True)) > 1000


def test_pythons_are_the_same_everywhere() -> None:
    project = (_ROOT / "pyproject.toml").read_text()
    classifiers = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', project)
    minors = [int(minor) for minor in classifiers]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert f'requires-python = ">=3.{minors[0]}"' in project
    assert re.findall(r'"cp3(\d+)-\*"', project) == classifiers
    first_and_last = f"3.{minors[0]} to 3.{minors[-1]}"
    for document in ("README.md", "docs/compatibility.md"):
        assert first_and_last in (_ROOT / document).read_text(), document


def test_an_archive_does_not_depend_on_when_it_is_made(tmp_path: Path) -> None:
    archives = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "file"
        file.write_text("text")
        file.chmod(0o600 if name == "one" else 0o664)
        os.utime(file, (1, 1) if name == "one" else None)
        archive = tmp_path / name / "archive.tar.gz"
        with tarfile.open(archive, "w:gz") as made:
            made.add(file, "x/file")
        release._repack(archive, 1_700_000_000)
        archives.append(archive.read_bytes())
        time.sleep(1.1)  # gzip has the time in seconds
    assert archives[0] == archives[1]
    with tarfile.open(tmp_path / "one" / "archive.tar.gz") as archive_file:
        (member,) = archive_file.getmembers()
        assert (member.name, member.mtime, member.mode) == ("x/file", 1_700_000_000, 0o644)
        reader = archive_file.extractfile(member)
        assert reader is not None
        assert reader.read() == b"text"


def test_a_wheel_that_is_wrong(tmp_path: Path) -> None:
    pytest.importorskip("elftools")
    contents = importlib.import_module("tools.wheel_contents")
    wheel = tmp_path / "rawnccl-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pynccl/__init__.py", "")
        archive.writestr("tests/test_package.py", "")
        archive.writestr("rawnccl-0.1.0.dist-info/METADATA", "Name: pynccl\nVersion: 0.1.0\n")
        archive.writestr("rawnccl-0.1.0.dist-info/entry_points.txt", "")
        archive.writestr("rawnccl-0.1.0.dist-info/licenses/LICENSE", "mine")
    found = "\n".join(contents.problems(wheel, "0.1.0"))
    for text in (
        "tests/test_package.py is unexpected",
        "pynccl/nccl.py is missing",
        "pynccl/py.typed is missing",
        "pynccl/_C.pyi is missing",
        "pynccl/lib/preload/libnccl.so.2 is missing",
        "pynccl/include/pynccl/c10d/module.cpp is missing",
        "it has not one extension module",
        "LICENSE is not that of the source tree",
        "LICENSE-THIRD-PARTY is missing",
        "its metadata say pynccl 0.1.0",
        "the entry point for torch is missing",
    ):
        assert text in found
    assert "pynccl/__init__.py is missing" not in found
