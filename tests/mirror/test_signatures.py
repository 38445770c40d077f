"""Proves that mirrored names have torch's signature, and that each absent name has a reason."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as torch_dist
from torch.distributed import distributed_c10d

import pynccl
from tests.mirror.since import MIRRORED_TORCH, SINCE
from tests.support.commands import python_output

_OPTIONS = """
    AllToAllOptions AllreduceCoalescedOptions AllreduceOptions BarrierOptions BroadcastOptions
    GatherOptions ReduceOptions ReduceScatterOptions ScatterOptions
"""
ABSENT = {
    "ProcessGroupGloo": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupMPI": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupNCCL": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupNCCL2": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupNCCLLazy": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupUCC": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupXCCL": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    **dict.fromkeys(
        ("_get_reconfigure_handle", "_reconfigure", "_supports_reconfigure"),
        "for groups of the backend `pynccl`; here `reconfigure()`",
    ),
    **dict.fromkeys(_OPTIONS.split(), "for methods of torch's ProcessGroup, which pynccl's lacks"),
    "GroupName": "a type for annotations",
    "record_comm": "use `torch.profiler.record_function()`",
    "all_gather_coalesced": "deprecated; call `all_gather` in `pynccl.nccl.group()`",
    "all_reduce_coalesced": "deprecated; call `all_reduce` in `pynccl.nccl.group()`",
}
ABSENT_PARAMETERS = {"init_process_group": {"enable_reconfigure"}}
# Created in C++, where inspect finds no signature; tested elsewhere.
OPAQUE = {"ProcessGroup", "Work"}
OWN = {"__version__", "get_include", "memory", "nccl", "ops", "raw"}
NOT_IN_TORCH = {"reconfigure"}

# Annotations that are not torch's. "return" is that of the result.
_REDUCTIONS = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)
ANNOTATED_OTHERWISE = {
    **{f"{name}(op)": "operators of pynccl.nccl and names, too" for name in _REDUCTIONS},
    "_rank_not_in_group(group)": "torch takes a Backend of its own for a group",
    "all_gather(group)": "torch takes a Backend of its own for a group",
    "all_gather_single(group)": "torch takes a Backend of its own for a group",
    "get_backend_impl(return)": "a backend of pynccl is a Communicator",
    "shrink_group(pg_options)": "a Config of pynccl, too",
    "split_group(pg_options)": "a Config of pynccl, too",
}

MIRRORED = sorted(set(pynccl.__all__) - OWN - NOT_IN_TORCH)

# The installed torch may differ from the mirrored version. An older one lacks the names in SINCE
# and no others. A newer one may have additional names, which are listed. Annotations differ between
# versions, so they are compared with those of the mirrored version only.
INSTALLED = tuple(map(int, torch.__version__.split(".")[:2]))


def _is_installed(name: str) -> bool:
    """Whether the installed torch provides a name of the mirror, according to the table."""
    return SINCE.get(name, INSTALLED) <= INSTALLED


def _find(name: str) -> Any:
    for module in (distributed_c10d, torch_dist, torch._C._distributed_c10d):
        if hasattr(module, name):
            return getattr(module, name)
    return None


def _of_torch(name: str) -> Any:
    found = _find(name)
    if found is None and not _is_installed(name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    assert found is not None, f"torch has no {name}"
    return found


def _annotation(given: Any) -> str:
    """An annotation, with unqualified type names."""
    text = given if isinstance(given, str) else inspect.formatannotation(given)
    return re.sub(r"\b(?:[a-zA-Z_]\w*\.)+(?=[A-Za-z_])", "", text)


def _compare(name: str, ours: Any, theirs: Any) -> None:
    """Compare two functions: parameters, kinds, defaults, and comparable annotations."""
    mirrored = inspect.signature(ours, eval_str=True)
    expected = inspect.signature(theirs, eval_str=True)
    parameters = {
        key: item for key, item in mirrored.parameters.items() if _is_installed(f"{name}({key})")
    }
    absent = ABSENT_PARAMETERS.get(name, set())
    added = [key for key in expected.parameters if key not in parameters and key not in absent]
    if INSTALLED <= MIRRORED_TORCH:
        assert not added
    assert list(parameters) == [key for key in expected.parameters if key not in {*added, *absent}]
    for key, item in parameters.items():
        assert item.kind == expected.parameters[key].kind, key
        assert str(item.default) == str(expected.parameters[key].default), key
    if INSTALLED == MIRRORED_TORCH:
        both = {
            key: (item.annotation, expected.parameters[key].annotation)
            for key, item in parameters.items()
        }
        both["return"] = mirrored.return_annotation, expected.return_annotation
        texts = {key: tuple(map(_annotation, pair)) for key, pair in both.items()}
        differ = {f"{name}({key})" for key, (own, other) in texts.items() if own != other}
        assert differ == {key for key in ANNOTATED_OTHERWISE if key.startswith(f"{name}(")}, texts
    if added:
        pytest.skip(f"torch {torch.__version__} has more parameters of {name}: {added}")


def test_every_name_of_torch_is_mirrored_or_absent_for_a_reason() -> None:
    missing = set(distributed_c10d.__all__) - set(pynccl.__all__) - set(ABSENT)
    if INSTALLED <= MIRRORED_TORCH:
        assert not missing
    assert not set(ABSENT) & set(pynccl.__all__)
    if missing:
        pytest.skip(f"torch {torch.__version__} has more names: {missing}")


@pytest.mark.parametrize("name", MIRRORED)
def test_signature(name: str) -> None:
    ours, theirs = getattr(pynccl, name), _of_torch(name)
    if ours is theirs or name in OPAQUE or not callable(theirs):
        return
    try:
        inspect.signature(theirs)
    except ValueError:
        pytest.fail(f"torch's {name} has no signature: add it to OPAQUE")
    _compare(name, ours, theirs)


@pytest.mark.parametrize("name", SINCE)
def test_table_of_versions(name: str) -> None:
    """The mirror and torch provide each name in the table, torch since the listed version."""
    base, parameter, member = re.fullmatch(r"(\w+)(?:\((\w+)\))?(?:\.(\w+))?", name).groups()
    ours, theirs = getattr(pynccl, base), _find(base)
    if parameter:
        assert parameter in inspect.signature(ours).parameters
        in_torch = parameter in inspect.signature(theirs).parameters
    elif member:
        ours, in_torch = getattr(ours, member), hasattr(theirs, member)
    else:
        in_torch = theirs is not None
    assert in_torch == _is_installed(name)
    if ours is not theirs:
        text = " ".join((inspect.getdoc(ours) or "").split())
        assert "since torch {}.{}".format(*SINCE[name]) in text


def test_methods_of_work() -> None:
    """Work has torch's public methods, except those of its C++ layer and of its watchdog."""
    ours, theirs = (set(dir(work)) for work in (pynccl.Work, _of_torch("Work")))
    missing = {name for name in theirs - ours if not name.startswith("_")}
    missing -= {"boxed", "unbox", "get_future_result"}
    if INSTALLED <= MIRRORED_TORCH:
        assert not missing


def test_all_names_resolve() -> None:
    for name in pynccl.__all__:
        assert getattr(pynccl, name) is not None
    assert set(pynccl.__all__) <= set(dir(pynccl))
    with pytest.raises(AttributeError, match="no attribute 'all_reduced'"):
        pynccl.all_reduced  # noqa: B018


def test_without_torch() -> None:
    """The objects and nccl.h work; the mirror's names raise an error that names torch."""
    printed = python_output(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "import pynccl\n"
        "from pynccl import nccl, raw\n"
        "comm = nccl.Communicator(1, nccl.get_unique_id('host'), 0, provider='host')\n"
        "comm.close()\n"
        "try:\n"
        "    pynccl.all_reduce\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert "needs torch, which is not installed" in printed
    assert "pynccl.nccl and pynccl.raw work without it" in printed


def test_the_list_of_names() -> None:
    """pynccl.__all__ lists the names that the modules of functions provide."""
    exported = {
        name
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("pynccl.mirror.api.")
        for name in getattr(module, "__all__", ())
    }
    assert exported
    assert exported <= set(pynccl.__all__)


FUNCTIONS = [
    name
    for name in MIRRORED
    if name != "reduce_op"  # warns on access
    and inspect.isroutine(getattr(pynccl, name))
    and getattr(pynccl, name).__module__.startswith("pynccl.")
    and not name.startswith("_")
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring(name: str) -> None:
    """Each docstring names torch's function, and only existing parameters."""
    function = getattr(pynccl, name)
    text = inspect.getdoc(function) or ""
    assert f"torch.distributed.{name}" in text or not hasattr(torch_dist, name)
    args = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    described = re.findall(r"^    (\w+): ", args[1], re.MULTILINE) if args else []
    assert set(described) <= set(inspect.signature(function).parameters)


@pytest.mark.skipif(INSTALLED > MIRRORED_TORCH, reason="a newer torch may have more names")
def test_page_is_current() -> None:
    """The tables of docs/mirror.md are the current output of tools/mirror_table.py."""
    from tools import mirror_table  # which imports this module

    text = mirror_table.PAGE.read_text()
    assert text == mirror_table.page(text), "run python -m tools.mirror_table"
