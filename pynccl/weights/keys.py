"""The sources of a session's key."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import ssl
import stat
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

from pynccl.store import Store

__all__ = ["INSECURE", "LocalKey", "Trust", "key_to_pass", "new_key", "read_local_key", "trust_of"]

_VARIABLE = "PYNCCL_WEIGHTS_KEY"
INSECURE = "insecure"  # the key of sessions that anyone may join

_SHORTEST = 32  # characters
_LONGEST = 4096


def new_key() -> str:
    """Generate a random key."""
    return secrets.token_hex(32)


def key_to_pass() -> str | None:
    """A new key, for members that get the address from the program; None if they have one set."""
    return None if _VARIABLE in os.environ else new_key()


class Trust(NamedTuple):
    """The settings by which a member authenticates the others."""

    key: str | None  # None if it comes from the store, or from a file on this machine
    tls: ssl.SSLContext | None


def trust_of(
    address: str | Store,
    key: str | os.PathLike[str] | None,
    *,
    insecure: bool,
    tls: ssl.SSLContext | None,
) -> Trust:
    """Validate the user's settings: see :class:`WeightSender`.

    Raises:
        TypeError, ValueError: an argument is invalid, or there is no key for an address that other
            machines can reach. The text never contains the key.
        OSError: the file cannot be read.
        PermissionError: other users can read the file, or own it.
    """
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise TypeError(f"tls: expected an ssl.SSLContext or None, got {type(tls).__name__}")
    return Trust(_given_key(address, key, insecure=insecure), tls)


def _given_key(
    address: str | Store, key: str | os.PathLike[str] | None, *, insecure: bool
) -> str | None:
    if insecure:
        if key is not None:
            raise ValueError(
                "insecure: a session with a key is not insecure; pass only one of them"
            )
        return INSECURE
    if isinstance(key, os.PathLike):
        return _checked(_read_private(Path(key)), f"key: {os.fspath(key)}")
    if key is not None:
        if not isinstance(key, str):
            raise TypeError(f"key: expected a str, a path or None, got {type(key).__name__}")
        return _checked(key, "key")
    if _VARIABLE in os.environ:
        return _checked(os.environ[_VARIABLE], _VARIABLE)
    if isinstance(address, str) and not _is_loopback(address):
        raise ValueError(
            f"key: other machines can reach {address!r}, so the session needs a key. On all "
            f"members pass key=, a secret of at least {_SHORTEST} characters "
            "(secrets.token_hex(32)) or the path of a file with it that only its owner can read, "
            f"or set {_VARIABLE}. "
            "insecure=True on all members lets anyone who can connect join"
        )
    return None


def _checked(key: str, source: str) -> str:
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise ValueError(
            f"{source}: has {len(key)} characters, must have {_SHORTEST} to {_LONGEST}"
        )
    return key


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _read_private(path: Path) -> str:
    """The text of a file that only this user, or root, can read and write."""
    # A pipe must not block; a link may lead to a file chosen by another user.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"key: {path} is not a regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"key: {path} belongs to another user")
        if status.st_mode & 0o077:
            raise PermissionError(
                f"key: {path} has mode {status.st_mode & 0o777:04o}, so other users can "
                "read or write it; chmod 600 it, and use another key if they may have read it"
            )
        return file.read(_LONGEST + 1).decode(errors="replace").strip()


# Without a key, a session on the loopback address generates one, which the user's processes find in
# a file.


def _local_path(port: int) -> Path:
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if folder.startswith("/"):
        return Path(folder, f"pynccl-weights-{port}.key")
    return Path("/tmp", f"pynccl-weights-{os.geteuid()}-{port}.key")


class LocalKey:
    """A new key in a file of this user, for the receivers of the session at a port.

    The file is removed at the exit of the process at the latest.

    Raises:
        OSError: the file cannot be written, or another user has a file of this name.
    """

    def __init__(self, port: int) -> None:
        self.key = new_key()
        path = _local_path(port)
        # Created with O_EXCL, O_NOFOLLOW and mode 0600. In a directory shared by all users, a
        # rename cannot replace another user's file.
        try:
            descriptor, name = tempfile.mkstemp(prefix=".pynccl-weights-", dir=path.parent)
            try:
                with open(descriptor, "w") as file:
                    file.write(self.key)
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise OSError(
                f"key: {path} cannot be written ({error}); pass key= on all members"
            ) from error
        self._remove = weakref.finalize(self, _remove_key, path, self.key, os.getpid())

    def remove(self) -> None:
        """Remove the file, unless another session has replaced it or this is a forked child."""
        self._remove()


def _remove_key(path: Path, key: str, owner: int) -> None:
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        if _read_private(path) == key:
            path.unlink()


def read_local_key(port: int) -> str | None:
    """The key written by LocalKey; None if there is none yet.

    Raises:
        PermissionError: other users can read the file, or own it.
    """
    try:
        return _read_private(_local_path(port))
    except FileNotFoundError:
        return None
