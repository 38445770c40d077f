"""A folder-based store with the methods of torch.distributed.Store."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from urllib.parse import quote

__all__ = ["FolderStore"]


class FolderStore:
    """A store whose values are files.

    Args:
        folder: a folder shared by the ranks.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(exist_ok=True)

    def set(self, key: str, value: str) -> None:
        path = self._path(key)
        part = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}.part")
        part.write_text(value)
        part.rename(path)

    def get(self, key: str) -> bytes:
        while not self.check([key]):
            time.sleep(0.001)
        return self._path(key).read_bytes()

    def add(self, key: str, amount: int) -> int:
        with open(self._path(key), "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            value = int(file.read() or 0) + amount
            file.truncate(0)
            file.write(str(value))
            return value

    def check(self, keys: list[str]) -> bool:
        return all(self._path(key).exists() for key in keys)

    def _path(self, key: str) -> Path:
        return self._folder / quote(key, safe="")
