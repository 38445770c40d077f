"""Proves that a library's settings can be read: their keys, their current values, and their types,
which are never converted; by the objects and by nccl.h's functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pynccl import nccl, raw
from tests.support import gpu
from tests.support.commands import python_output, run_python

_TYPES = {
    "int8_t": "I8", "int16_t": "I16", "int32_t": "I32", "int64_t": "I64",
    "uint8_t": "U8", "uint16_t": "U16", "uint32_t": "U32", "uint64_t": "U64",
    "const char*": "Str",
}  # fmt: skip

_DOCUMENTATION = Path(__file__).parents[2] / "docs" / "internals" / "base.md"
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def _documented() -> dict[str, str | None]:
    """The settings of hostnccl and their defaults, None for those that are texts."""
    rows = re.findall(r"^\| `(HOSTNCCL_\w+)` \| (.*?) \|", _DOCUMENTATION.read_text(), re.MULTILINE)
    defaults = {}
    for key, text in rows:
        found = re.fullmatch(r"(?:measured; )?(\d+) ?(KiB|MiB|)(?: \(off\))?", text)
        number = str(int(found[1]) * _UNITS[found[2]]) if found else None
        defaults[key] = text if text in ("TRUE", "FALSE") else number
    return defaults


_HOST = _documented()


def _python(code: str, *arguments: str, **env: str) -> str:
    settings = {"HOSTNCCL_TUNING": "off", **env}
    return python_output(code, *arguments, without="HOSTNCCL_", **settings)


@pytest.fixture
def library(provider: str) -> raw.Library:
    """Each provider's library. tests/abi/loading.py tests NCCL itself without a GPU."""
    return gpu.require(provider, "ncclParamBind")


def test_they_are_a_mapping(library: raw.Library) -> None:
    params = nccl.params(library.path)
    assert isinstance(params, Mapping)
    assert len(params) == len(set(params)) >= 5
    assert all(key.isupper() for key in params)
    for key, value in params.items():
        assert params.get(key) == value == params.param(key).text
        assert key in params
    assert "NOBODY_KNOWS_IT" not in params
    assert 3 not in params
    assert params.get("NOBODY_KNOWS_IT") is None
    with pytest.raises(KeyError, match="NOBODY_KNOWS_IT"):
        params["NOBODY_KNOWS_IT"]
    with pytest.raises(KeyError, match="NOBODY_KNOWS_IT"):
        params.param("NOBODY_KNOWS_IT")
    with pytest.raises(TypeError, match="key: expected a str, got 3"):
        params.param(3)
    with pytest.raises(TypeError):
        params["A"] = "1"  # type: ignore[index]
    assert repr(params).startswith(f"<pynccl.nccl.Params of {library.path}: {{")
    assert repr(params.param(key)) == f"<pynccl.nccl.Param {key}={params[key]}>"


def test_every_type_is_kept(library: raw.Library) -> None:
    """A getter returns values of its own type, and refuses all others."""
    params = nccl.params(library.path)
    seen = set()
    for key in params:
        param = params.param(key)
        seen.add(param.c_type)
        handle = library.ncclParamBind(key)
        assert handle == library.ncclParamBind(key)
        for c_type, suffix in _TYPES.items():
            getter = getattr(library, f"ncclParamGet{suffix}")
            if c_type == param.c_type:
                assert getter(handle) == param.get() == param.get(c_type)
                continue
            with pytest.raises(nccl.NcclInvalidArgumentError):
                getter(handle)
            with pytest.raises(TypeError, match=f"c_type: {key} has"):
                param.get(c_type)
        if param.c_type is None:
            assert param.get() == param.text
        with pytest.raises(ValueError, match="c_type: 'int' is not one of"):
            param.get("int")
        _check_bytes(library, param, handle)
    assert None in seen
    assert "const char*" in seen
    assert seen & {"uint32_t", "uint64_t"}


def _check_bytes(library: raw.Library, param: nccl.Param, handle: int) -> None:
    """The value in memory, and a buffer that is too small for it."""
    value = param.get()
    size = len(param.raw)
    if param.c_type == "const char*":
        assert param.raw == str(value).encode() + b"\0"
    elif param.c_type is not None:
        assert int.from_bytes(param.raw, "little", signed=not param.c_type.startswith("u")) == value
        assert size == int(param.c_type.removeprefix("u")[3:-2]) // 8
    assert library.ncclParamGet(handle, size) == (param.raw, size)
    with pytest.raises(nccl.NcclInvalidArgumentError):
        library.ncclParamGet(handle, size - 1)
    with pytest.raises(nccl.NcclInvalidArgumentError):
        library.ncclParamGet(handle, 0)


def test_wrong_keys_and_handles(library: raw.Library) -> None:
    for function in (library.ncclParamBind, library.ncclParamGetParameter):
        with pytest.raises(nccl.NcclInvalidArgumentError):
            function("NOBODY_KNOWS_IT")
    for suffix in _TYPES.values():
        with pytest.raises(nccl.NcclInvalidArgumentError):
            getattr(library, f"ncclParamGet{suffix}")(None)


def test_a_foreign_handle_is_refused() -> None:
    lib = raw.load("host")
    other = lib.ncclParamBind("HOSTNCCL_SPIN_US") + 1
    with pytest.raises(nccl.NcclInvalidArgumentError, match="is not a handle from ncclParamBind"):
        lib.ncclParamGetU64(other)


def test_the_settings_of_hostnccl() -> None:
    code = "from pynccl import nccl; p = nccl.params('host'); "
    code += "print({k: (p.param(k).c_type, v) for k, v in p.items()})"
    found = eval(_python(code))  # a dict of strings, printed by us
    assert found.keys() == _HOST.keys()
    for key, default in _HOST.items():
        assert found[key][1] == default or default is None
    assert [key for key, default in _HOST.items() if default is None] == [
        "HOSTNCCL_ISA", "HOSTNCCL_TUNING", "HOSTNCCL_TUNING_FILE",
    ]  # fmt: skip
    assert {c_type for c_type, _ in found.values()} == {"int64_t", "uint64_t", "const char*", None}
    assert found["HOSTNCCL_ISA"][1] in ("baseline", "avx2", "avx512")
    assert found["HOSTNCCL_TUNING_FILE"][1] == ""


_THRESHOLD, _WITHIN = "HOSTNCCL_DIRECT_BYTES", "HOSTNCCL_DIRECT_BYTES_IN_PROCESS"


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (
            {
                "HOSTNCCL_INIT_TIMEOUT": "7",
                "HOSTNCCL_CMA": "0",
                "HOSTNCCL_ISA": "baseline",
                "HOSTNCCL_SPIN_US": "0",
                "HOSTNCCL_DIRECT_BYTES": str(1 << 40),
            },
            [7, "FALSE", "baseline", 0, 1 << 40],
        ),
        ({"HOSTNCCL_CMA": "true", "HOSTNCCL_DIRECT_MESSAGE_BYTES": ""}, ["TRUE", 16 << 20]),
        # The threshold within a process defaults to the general one, if that is given.
        ({_THRESHOLD: "5", _WITHIN: ""}, [5, 5]),
        ({_THRESHOLD: "", _WITHIN: "7"}, [16 << 20, 7]),
        ({_THRESHOLD: "5", _WITHIN: "7"}, [5, 7]),
    ],
)
def test_the_environment_is_shown(given: dict[str, str], values: list[int | str]) -> None:
    code = "from pynccl import nccl; p = nccl.params('host'); "
    code += f"print([p.param(key).get() for key in {list(given)}])"
    assert _python(code, **given) == repr(values)


# Most of them are read once per process, so each value is tested in a fork before the first read.
_TRY_EACH = """
import json, os, sys
from pynccl import errors, nccl
unique_id = nccl.get_unique_id("host")

def run_on_stream():
    stream = nccl.Stream("host")
    stream.launch(lambda: None)
    stream.synchronize()

for key, given in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if child := os.fork():
        if status := os.waitpid(child, 0)[1]:
            print(key, given, f"ended with {status}", sep="|")
        continue
    os.environ[key] = given
    for use in (
        lambda: nccl.params("host")[key],
        lambda: nccl.Communicator(1, unique_id, 0, provider="host"),
        lambda: nccl.Communicator(1, unique_id, 0, provider="host"),
        run_on_stream,
    ):
        try:
            use()
            if use is not run_on_stream:  # which does not need most of them
                print(key, given, "was accepted", sep="|")
        except (nccl.NcclInvalidArgumentError, errors.DriverError) as error:
            if f"{key}={given} is n" not in str(error):
                print(key, given, error, sep="|")
    sys.stdout.flush()
    os._exit(0)
"""
_GARBAGE = (
    "abc",
    "-1",
    "1e3",
    "16k",
    " 7",
    "7 ",
    "9" * 30,
    "0x10",
    "on off",
    "\t",
    "\N{MICRO SIGN}",
)
_OUT_OF_RANGE = [
    ("HOSTNCCL_INIT_TIMEOUT", "0"),
    ("HOSTNCCL_DIRECT_BYTES", str((1 << 40) + 1)),
    ("HOSTNCCL_DEADLOCK_MS", "1000000001"),
]


def test_wrong_values_in_the_environment_are_refused() -> None:
    """By a read, the creation of a communicator, and a stream if it needs the value."""
    keys = _HOST.keys() - {"HOSTNCCL_TUNING_FILE"}  # which may be any text
    cells = [(key, given) for key in sorted(keys) for given in _GARBAGE] + _OUT_OF_RANGE
    assert _python(_TRY_EACH, json.dumps(cells)) == ""


def test_dump(library: raw.Library) -> None:
    """All keys and values are written to NCCL's log."""
    code = (
        f"from pynccl import nccl; p = nccl.params({library.path!r}); p.dump(); "
        "import sys; print(list(p), file=sys.stderr)"
    )
    done = run_python("-c", code, NCCL_DEBUG="INFO")
    for key in eval(done.stderr.splitlines()[-1]):  # a list of strings, printed by us
        assert key in done.stdout
