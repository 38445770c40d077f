"""Proves the search for a provider's library: by the environment, already loaded, two side by side,
an older one with its versions of the structs, and a file that every NCCL client accepts as NCCL.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pynccl import errors, libraries, nccl, raw, testing
from tests.support.commands import python_output
from tests.support.old_nccl import compile_nccl
from tools import noop

_HOST = libraries.locate("host").path


_python = partial(python_output, without="PYNCCL_")


def _refusal(call: str, **variables: str) -> str:
    """The error of a call in a new process."""
    code = f"""
from pynccl import errors, libraries, raw
try:
    {call}
except (errors.LibraryNotFoundError, ValueError) as error:
    print(error)
"""
    return _python(code, **variables)


def test_host_comes_with_the_package() -> None:
    found = _python(
        "from pynccl import libraries as l; print(*l.locate('host'), l.__file__, sep='\\n')"
    ).splitlines()
    assert found[1] == "part of pynccl"
    assert Path(found[0]) == Path(found[2]).parent / "lib" / "libhostnccl.so"
    assert Path(found[0]).is_file()


def test_host_by_the_environment(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    shutil.copy(_HOST, other)
    code = (
        "from pynccl import libraries as l, raw; "
        "print(*l.locate('host'), raw.load('host').path, raw.load('host').memory, sep='|')"
    )
    printed = _python(code, PYNCCL_HOSTNCCL_LIBRARY=str(other))
    assert printed == f"{other}|PYNCCL_HOSTNCCL_LIBRARY|{other}|host"


def test_cuda_by_the_environment_is_not_loaded_to_locate_it() -> None:
    code = "from pynccl import libraries as l; print(*l.locate('cuda'), sep='|')"
    printed = _python(code, PYNCCL_NCCL_LIBRARY="/nowhere/libnccl.so.2")
    assert printed == "/nowhere/libnccl.so.2|PYNCCL_NCCL_LIBRARY"
    error = _refusal("raw.load('cuda')", PYNCCL_NCCL_LIBRARY="/nowhere/libnccl.so.2")
    assert "/nowhere/libnccl.so.2" in error


def test_a_provider_has_its_own_memory() -> None:
    """Rejected as libnccl.so.2: the buffers of hostnccl are not on a GPU."""
    text = _refusal("raw.load('cuda')", PYNCCL_NCCL_LIBRARY=_HOST)
    assert f"provider 'cuda': {_HOST} (PYNCCL_NCCL_LIBRARY) is a library for host memory" in text


def test_unknown_providers() -> None:
    with pytest.raises(ValueError, match="provider: 'gpu' is not one of 'cuda', 'host'"):
        libraries.locate("gpu")
    for function in (libraries.load, nccl.get_unique_id, nccl.get_version):
        with pytest.raises(ValueError, match="provider: 'gpu'"):
            function("gpu")


def test_default_provider_by_the_environment() -> None:
    code = "from pynccl import libraries as l; print(l.default_provider())"
    assert _python(code, PYNCCL_PROVIDER="cuda") == "cuda"
    assert _python(code, PYNCCL_PROVIDER="host") == "host"
    # Without a library or a driver for GPUs it is the CPUs.
    assert _python(code, PYNCCL_NCCL_LIBRARY="/nowhere/libnccl.so.2") == "host"
    error = _refusal("libraries.default_provider()", PYNCCL_PROVIDER="gloo")
    assert "PYNCCL_PROVIDER: 'gloo' is not one of" in error


def test_resolve() -> None:
    host = raw.load("host")
    for provider, device in (("host", None), (None, "cpu"), ("host", "cpu"), (_HOST, None)):
        assert libraries.resolve(provider, device)[0] is host
    assert libraries.resolve("host", None)[1] == -1
    assert libraries.resolve("host", 0)[1] == 0
    assert libraries.resolve(None, "cpu")[1] == 0

    class Device:  # as torch.device shows itself
        type, index = "cpu", None

    assert libraries.resolve(None, Device()) == (host, 0)
    assert libraries.resolve_all("host", 3) == (host, [0, 0, 0])
    assert libraries.resolve_all(None, ["cpu", Device()]) == (host, [0, 0])
    assert libraries.resolve_all(_HOST, ["cpu", "cpu"]) == (host, [0, 0])


def test_a_driver_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        driver_path = "libcuda.so.1"

        def device_names(self) -> list[str]:
            return []

    monkeypatch.setattr(libraries, "load", lambda _: Library())
    with pytest.raises(ValueError, match=r"devices: libcuda.so.1 reports no GPU"):
        libraries.resolve_all("cuda", 2)
    rank = testing.Rank(0, 2, "cuda", [], "", print)
    with pytest.raises(ValueError, match=r"devices: libcuda.so.1 reports no GPU"):
        _ = rank.device


def test_two_libraries_side_by_side() -> None:
    path = str(noop.library())
    host, another = raw.load("host"), raw.load(path)
    assert host is not another
    assert host.path != another.path
    comm = nccl.Communicator(1, bytes(128), 0, provider=path)
    with nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host") as other:
        assert comm.library is another
        assert other.library is host
        with pytest.raises(ValueError, match="stream: belongs to"):
            other.all_reduce(np.zeros(4, np.uint8), stream=nccl.Stream(path))
    comm.close()


_OLD_NCCL = """
#include <string.h>
typedef struct { char internal[128]; } Id;
static unsigned long size;
static unsigned version;
int ncclCommInitRankConfig(void** comm, int nranks, Id id, int rank, void* config) {
  memcpy(&size, config, 8);
  memcpy(&version, (char*)config + 12, 4);
  *comm = &size;
  return 0;
}
/* What arrived, through functions that have a result to give. */
int ncclCommCount(void* comm, int* count) { *count = (int)size; return 0; }
int ncclCommUserRank(void* comm, int* rank) { *rank = (int)version; return 0; }
"""


# The size of ncclConfig_t in the release, which ends after the release's last field.
@pytest.mark.parametrize(("version", "size"), [(21805, 48), (22703, 72), (22909, 88), (23203, 120)])
def test_an_older_library_gets_its_own_config(tmp_path: Path, version: int, size: int) -> None:
    lib = raw.load(compile_nccl(tmp_path, version, _OLD_NCCL))
    comm = lib.ncclCommInitRankConfig(1, bytes(128), 0, raw.ncclConfig_t())
    assert (lib.ncclCommCount(comm), lib.ncclCommUserRank(comm)) == (size, version)


def test_an_unsupported_setting_is_rejected(tmp_path: Path) -> None:
    lib = raw.load(compile_nccl(tmp_path, 21805, _OLD_NCCL))
    config = raw.ncclConfig_t()
    config.commName = "x"
    with pytest.raises(ValueError, match=r"config\.comm_name needs NCCL 2\.27\.0; .* is 2\.18\.5"):
        lib.ncclCommInitRankConfig(1, bytes(128), 0, config)
    with pytest.raises(errors.MissingFunctionError, match=r"needs NCCL 2\.28\.0; .* 2\.18\.5"):
        lib.ncclAlltoAll(0, 0, 0, 0, 0, 0)
    assert lib.functions()["ncclAlltoAll"] == (22800, False)


def test_a_library_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.LibraryNotFoundError, match=r"is NCCL 2\.17\.1; pynccl needs 2\.18"):
        raw.load(compile_nccl(tmp_path, 21701, _OLD_NCCL))


def _print(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_names_of_the_host_libraries() -> None:
    """The engine must not have NCCL's name in a process that later loads NCCL; the preload file
    must.
    """
    preload, engine = (
        re.search(r"SONAME.*\[(.+)\]", _print("readelf", "-dW", path))
        for path in (str(libraries.hostnccl_preload()), _HOST)
    )
    assert preload
    assert preload[1] == "libnccl.so.2"
    assert engine
    assert engine[1] != "libnccl.so.2"


@pytest.mark.parametrize("path", [_HOST, str(libraries.hostnccl_preload())])
def test_exports(path: str) -> None:
    """Only NCCL's functions, each also under its profiling name, and the stream calls."""
    listed = _print("nm", "-D", "--defined-only", path)
    exports = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    functions = {name for name, (_, present) in raw.load("host").functions().items() if present}
    nccl_names = {name for name in exports if name.startswith("nccl")}
    assert nccl_names == functions
    assert {name for name in exports if name.startswith("pnccl")} == {f"p{n}" for n in functions}
    rest = {name for name in exports if not re.match("p?nccl", name)}
    assert all(re.fullmatch("host[A-Z][A-Za-z]+", name) for name in rest), rest


def test_info_lists_the_libraries() -> None:
    printed = _python("from pynccl.cli import main; main(['info'])")
    assert "libhostnccl.so (part of pynccl)" in printed
    assert "2.32." in printed
    assert re.search(r"provider cuda\n +library ", printed)
    assert "not set; --all prints them" in printed
    assert "set_by=" not in printed
    printed = _python("from pynccl.cli import main; main(['info'])", HOSTNCCL_SPIN_US="5")
    assert "  HOSTNCCL_SPIN_US=5\n" in printed


def test_info_with_a_closed_pipe() -> None:
    """As in `pynccl info | head`: the reader of the pipe has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "import sys, pynccl.cli; sys.exit(pynccl.cli.main(['info']))"]
    with open(writer, "wb") as pipe:
        done = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_a_preloaded_hostnccl_is_not_the_cuda_provider() -> None:
    """In a process where hostnccl replaces NCCL, the cuda provider detects that it is not NCCL."""
    preload = str(libraries.hostnccl_preload())
    code = (
        "from pynccl import raw, libraries as l; "
        "print(l.locate('cuda').reason, raw.load('host').path)"
    )
    first = _python(code, LD_PRELOAD=preload)
    assert first.startswith("already loaded in this process ")
    assert first.endswith("libhostnccl.so")
    error = _refusal("raw.load('host'); raw.load('cuda')", LD_PRELOAD=preload)
    assert "is a library for host memory" in error


def test_a_process_has_one_nccl() -> None:
    variables = {
        "LD_PRELOAD": str(libraries.hostnccl_preload()),
        "PYNCCL_NCCL_LIBRARY": "/nowhere/libnccl.so.2",
    }
    printed = _refusal("libraries.locate('cuda')", **variables)
    assert printed.startswith("PYNCCL_NCCL_LIBRARY is /nowhere/libnccl.so.2, but ")
    assert printed.endswith("a process cannot use two NCCLs")


def test_symbols_stay_local() -> None:
    """Loading the provider does not export ncclGetVersion to the rest of the process."""
    code = (
        "import ctypes\nfrom pynccl import raw\nraw.load('host').ncclGetVersion()\n"
        "print(hasattr(ctypes.CDLL(None), 'ncclGetVersion'))"
    )
    assert _python(code) == "False"
    assert ctypes.CDLL(_HOST).ncclGetVersion is not None
