"""Folders whose contents are run: only the user and root may be able to change what is in them.

The rules are those of OpenSSH for its files: on the whole path, every folder belongs to the user or
to root, and nobody else can write to it. Excepted are folders with the sticky bit, as /tmp, in
which only the owner of an entry can replace it, and the group that has the user's name and no other
member.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

__all__ = ["check", "create"]


def create(folder: Path) -> None:
    """Create a folder, and those above it that do not exist, for the user alone.

    Args:
        folder: its path.

    Raises:
        PermissionError: another user can write to it, or replace it.
    """
    folder = Path(os.path.abspath(folder))
    check(next(path for path in (folder, *folder.parents) if path.exists()))
    for path in (*reversed(folder.parents), folder):
        path.mkdir(mode=0o700, exist_ok=True)
    check(folder)


def check(path: Path) -> None:
    """Check a file or a folder, and all folders above it.

    Args:
        path: where it is; links on it are followed, and checked as well.

    Raises:
        PermissionError: another user can write to it, or replace it.
    """
    path = Path(os.path.abspath(path))
    for part in (*reversed(path.parents), path):
        info = part.lstat()
        if problem := _problem(info):
            raise PermissionError(
                f"{path}: what is in it would be run, and {part} {problem}. Correct its owner and "
                "mode, or choose a folder of your own by PYNCCL_CACHE"
            )
        if stat.S_ISLNK(info.st_mode):
            check(part.parent.resolve() / part.readlink())


def _problem(info: os.stat_result) -> str | None:
    # The owner of this module runs code here anyway, as a site's account for software does.
    if info.st_uid not in (0, os.geteuid(), os.stat(__file__).st_uid):
        return f"belongs to another user (uid {info.st_uid})"
    if stat.S_ISLNK(info.st_mode):  # its mode means nothing
        return None
    if stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX:
        return None
    if info.st_mode & stat.S_IWOTH:
        return f"can be written by all users (mode {stat.S_IMODE(info.st_mode):04o})"
    if info.st_mode & stat.S_IWGRP and not _is_own_group(info.st_gid):
        return f"can be written by group {info.st_gid} (mode {stat.S_IMODE(info.st_mode):04o})"
    return None


def _is_own_group(gid: int) -> bool:
    """Whether only the user and root are in a group, as in the one that has the user's name."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        group.gr_name == user.pw_name
        and user.pw_gid == gid
        and set(group.gr_mem) <= {user.pw_name, "root"}
    )
