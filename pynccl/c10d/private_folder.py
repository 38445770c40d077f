"""Folders with executable content, which only the user and root may be able to modify.

The rules are OpenSSH's: every folder of the path must belong to the user or to root, and must not
be writable by others. Exceptions are folders with the sticky bit, such as /tmp, in which only the
owner of an entry can replace it, and the group with the user's name and no other member.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

__all__ = ["check", "create"]


def create(folder: Path) -> None:
    """Create a folder and its missing parents, accessible only to the user.

    Args:
        folder: the folder to create.

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
        path: the path to check; links are followed, and checked as well.

    Raises:
        PermissionError: another user can write to it, or replace it.
    """
    path = Path(os.path.abspath(path))
    for part in (*reversed(path.parents), path):
        info = part.lstat()
        if problem := _problem(info):
            raise PermissionError(
                f"{path}: its contents would be executed, but {part} {problem}. Correct its owner "
                "and mode, or set PYNCCL_CACHE to a folder of your own"
            )
        if stat.S_ISLNK(info.st_mode):
            check(part.parent.resolve() / part.readlink())


def _problem(info: os.stat_result) -> str | None:
    # The owner of this module (such as a site's software account) can run code here anyway.
    if info.st_uid not in (0, os.geteuid(), os.stat(__file__).st_uid):
        return f"belongs to another user (uid {info.st_uid})"
    if stat.S_ISLNK(info.st_mode):  # the mode of a link is meaningless
        return None
    if stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX:
        return None
    if info.st_mode & stat.S_IWOTH:
        return f"is writable by all users (mode {stat.S_IMODE(info.st_mode):04o})"
    if info.st_mode & stat.S_IWGRP and not _is_own_group(info.st_gid):
        return f"is writable by group {info.st_gid} (mode {stat.S_IMODE(info.st_mode):04o})"
    return None


def _is_own_group(gid: int) -> bool:
    """Return whether a group contains only the user and root, and has the user's name."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        group.gr_name == user.pw_name
        and user.pw_gid == gid
        and set(group.gr_mem) <= {user.pw_name, "root"}
    )
