"""Checks commit subjects: ``area: what changes``, at most 72 characters, one change.

python -m tools.commits                  # all commits since the rule was introduced
python -m tools.commits --message FILE   # for git's commit-msg hook
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["main", "problem"]

_ROOT = Path(__file__).parents[1]
_FIRST = "5a4d1bdb99398b2b174a550218585b940eb7b02f"  # the last commit before the rule
_LONGEST = 72
_OF_GIT = ("Merge ", "fixup! ", "squash! ", "amend! ")
_SUBJECT = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)?: \S.*")


def problem(subject: str) -> str:
    """Return the problem with a commit subject, or an empty string.

    Args:
        subject: the first line of the message.
    """
    if subject.startswith(_OF_GIT):
        return ""
    if len(subject) > _LONGEST:
        return f"{len(subject)} characters, at most {_LONGEST} are allowed"
    if ";" in subject:
        return "contains ';': one commit is one change"
    if not _SUBJECT.fullmatch(subject):
        return "does not begin with an area, as in 'comm: report a failed event'"
    return ""


def _subjects() -> list[str]:
    """The subjects of the commits to check. In a shallow clone, only the last one."""
    known = ["git", "cat-file", "-e", f"{_FIRST}^{{commit}}"]
    there = subprocess.run(known, cwd=_ROOT, check=False, capture_output=True).returncode == 0
    commits = [f"{_FIRST}..HEAD"] if there else ["-1", "HEAD"]
    command = ["git", "log", "--no-merges", "--format=%s", *commits]
    return subprocess.check_output(command, cwd=_ROOT, text=True).splitlines()


def main() -> int:
    """Check the subjects, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--message", type=Path, help="a file with one message")
    message = parser.parse_args().message
    subjects = message.read_text().splitlines()[:1] if message else _subjects()
    found = [(subject, text) for subject in subjects if (text := problem(subject))]
    for subject, text in found:
        print(f"{subject!r}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
