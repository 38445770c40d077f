"""Proves that the backend is neither built in nor loaded from a folder that another user can write
to, with any umask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pynccl.c10d import build, private_folder
from tests.support import warm
from tests.support.commands import run_python

_STRANGER = 12345
_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.usefixtures("no_umask")
def test_new_folders_are_private(tmp_path: Path) -> None:
    private_folder.create(tmp_path / "a" / "b" / "c")
    for name in ("a", "a/b", "a/b/c"):
        assert _mode(tmp_path / name) == 0o700
    private_folder.create(tmp_path / "a" / "b" / "c")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775, 0o722])
@pytest.mark.parametrize("name", ["a", "a/b", "a/b/module.so"])
def test_paths_writable_by_others_are_rejected(tmp_path: Path, name: str, mode: int) -> None:
    file = tmp_path / "a" / "b" / "module.so"
    private_folder.create(file.parent)
    file.touch(0o644)
    private_folder.check(file)
    (tmp_path / name).chmod(mode)
    if mode == 0o775 and private_folder._is_own_group((tmp_path / name).stat().st_gid):
        return private_folder.check(file)
    with pytest.raises(PermissionError, match=f"{tmp_path / name} is writable by"):
        private_folder.check(file)


def test_the_sticky_bit_protects_entries(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    private_folder.create(tmp_path / "shared" / "own")
    assert _mode(tmp_path / "shared" / "own") == 0o700


def test_links_are_followed(tmp_path: Path) -> None:
    private_folder.create(tmp_path / "good" / "folder")
    (tmp_path / "bad").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "bad" / "folder")
    (tmp_path / "bad" / "folder").symlink_to(tmp_path / "good" / "folder")
    private_folder.check(tmp_path / "link" / "module.so" / "..")
    (tmp_path / "bad").chmod(0o777)
    with pytest.raises(PermissionError, match=f"{tmp_path / 'bad'} is writable by all users"):
        private_folder.check(tmp_path / "link")


@_as_root
@pytest.mark.parametrize("name", ["cache", "cache/torch", "cache/torch/module.so"])
def test_files_of_another_user_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rejected before anything is loaded."""
    file = tmp_path / "cache" / "torch" / "module.so"
    private_folder.create(file.parent)
    file.write_text("this is no library")
    os.chown(tmp_path / name, _STRANGER, _STRANGER)
    monkeypatch.setattr(build, "path", lambda: file)
    text = rf"{tmp_path / name} belongs to another user \(uid {_STRANGER}\).*PYNCCL_CACHE"
    for function in (build.build, build.load.__wrapped__):
        with pytest.raises(PermissionError, match=text):
            function()


@_as_root
def test_a_folder_of_another_user_at_the_path_of_the_cache(tmp_path: Path) -> None:
    """Nothing is written to a folder that another user has created in /tmp."""
    planted = tmp_path / "shared" / "cache"
    planted.mkdir(parents=True)
    planted.parent.chmod(0o1777)
    os.chown(planted, _STRANGER, _STRANGER)
    arguments = ("-m", "pynccl", "build-backend")
    done = run_python(*arguments, timeout=120, popen=warm.Popen, PYNCCL_CACHE=str(planted))
    assert done.returncode != 0
    assert f"{planted} belongs to another user" in done.stderr
    assert not list(planted.iterdir())
