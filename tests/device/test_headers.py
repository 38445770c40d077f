"""Proves that pynccl.device.headers finds the headers of the loaded NCCL and rejects those of
another version, and that its options compile kernels by torch's load_inline. Those for CPUs compile
the kernels of test_kernels_on_cpus.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pynccl import libraries
from pynccl.device import headers
from pynccl.errors import LibraryNotFoundError
from tests.support.commands import run_python
from tests.support.tier import FULL

_NCCL_H = "#define NCCL_MAJOR 2\n#define NCCL_MINOR {}\n#define NCCL_PATCH {}\n"


def _installation(folder: Path, minor: int, patch: int) -> Any:
    """A library of this version at lib/libnccl.so.2, with headers at include."""
    include = folder / "include"
    include.mkdir(parents=True)
    (include / "nccl.h").write_text(_NCCL_H.format(minor, patch))
    (include / "nccl_device.h").touch()
    (folder / "lib").mkdir()
    version = 20000 + 100 * minor + patch
    path = str(folder / "lib" / "libnccl.so.2")
    return SimpleNamespace(path=path, version=version, memory="device")


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYNCCL_NCCL_INCLUDE", raising=False)


def test_of_the_installation(tmp_path: Path) -> None:
    library = _installation(tmp_path, 31, 2)
    assert headers.nccl_include(library) == tmp_path / "include"
    found = headers.options("nvcc", library)
    assert found[0] == "-std=c++17"
    assert found[-1] == f"-I{tmp_path}/include"


def test_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, other = (
        _installation(tmp_path / name, 30, patch) for name, patch in (("a", 7), ("b", 4))
    )
    monkeypatch.setenv("PYNCCL_NCCL_INCLUDE", str(Path(other.path).parents[1] / "include"))
    with pytest.raises(LibraryNotFoundError, match=r"NCCL_INCLUDE\).* 2\.30\.4, .* 2\.30\.7;"):
        headers.nccl_include(library)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("nccl.h", "", "does not define its version"),
        ("nccl_device.h", None, "does not contain both"),
    ],
)
def test_no_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str | None, text: str
) -> None:
    library = _installation(tmp_path, 32, 3)
    monkeypatch.setenv("PYNCCL_NCCL_INCLUDE", str(tmp_path / "include"))
    if content is None:
        (tmp_path / "include" / file).unlink()
    else:
        (tmp_path / "include" / file).write_text(content)
    with pytest.raises(LibraryNotFoundError, match=text):
        headers.nccl_include(library)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="compiler: 'gcc' is neither"):
        headers.options("gcc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is for CPUs"):
        headers.nccl_include(libraries.load("host"))


_INLINE = """
import sys
import torch
from torch.utils.cpp_extension import load_inline
from pynccl.device import headers

source = '''
#include <pynccl/device.h>
int64_t layouts() { return pynccl_device_version; }
'''
module = load_inline(
    "kernels", [source], functions=["layouts"], extra_cflags=headers.options("c++"),
    build_directory=sys.argv[1],
)
print(module.layouts())
"""


@pytest.mark.skipif(not FULL, reason="torch's headers take half a minute: `make test-all`")
def test_load_inline(tmp_path: Path) -> None:
    done = run_python("-c", _INLINE, str(tmp_path), timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 23100
