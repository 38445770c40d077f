"""Proves that every mirrored name has torch's signature, and that no name is left out silently."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as torch_dist
from torch.distributed import distributed_c10d

import pynccl

ABSENT = {
    "ProcessGroupGloo": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupMPI": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupNCCL": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupUCC": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
    "ProcessGroupXCCL": "torch's own implementation; pynccl.ProcessGroup is pynccl's",
}
# Made in C++, where inspect finds no signature; what they do is tested elsewhere.
OPAQUE = {"ProcessGroup", "Work"}
OWN = {"__version__", "get_include", "memory", "nccl", "ops", "raw"}
NOT_IN_TORCH = {"reconfigure"}

MIRRORED = sorted(set(pynccl.__all__) - OWN - NOT_IN_TORCH)

# Of which torch the mirror has the signatures. An older one may lack names and parameters, but what
# it has is the same.
MIRRORED_TORCH = (2, 13)
OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < MIRRORED_TORCH


def _of_torch(name: str) -> Any:
    for module in (distributed_c10d, torch_dist, torch._C._distributed_c10d):
        if hasattr(module, name):
            return getattr(module, name)
    if OLDER:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    raise AssertionError(f"torch has no {name}")


def _text(function: Any, only: Any = None) -> str:
    """A signature, its annotations by their last names; only the parameters of another function."""
    whole = inspect.signature(function)
    if only is not None:
        known = inspect.signature(only).parameters
        kept = [item for item in whole.parameters.values() if item.name in known]
        whole = whole.replace(parameters=kept)
    signature = str(whole).replace("'", "")
    return re.sub(r"\b(?:[a-zA-Z_]\w*\.)+(?=[A-Za-z_])", "", signature)


def test_every_name_of_torch_is_mirrored_or_absent_for_a_reason() -> None:
    names = set(distributed_c10d.__all__)
    assert names <= set(pynccl.__all__) | set(ABSENT)
    assert not set(ABSENT) & set(pynccl.__all__)


@pytest.mark.parametrize("name", MIRRORED)
def test_signature(name: str) -> None:
    ours, theirs = getattr(pynccl, name), _of_torch(name)
    if ours is theirs or name in OPAQUE or not callable(theirs):
        return
    try:
        expected = _text(theirs)
    except ValueError:
        pytest.fail(f"torch's {name} has no signature: add it to OPAQUE")
    assert _text(ours, theirs if OLDER else None) == expected


@pytest.mark.parametrize("name", ["ProcessGroup", "Work"])
def test_methods_of_classes_that_are_torch_s_in_cpp(name: str) -> None:
    """The public methods that pynccl's class has are torch's too, or pynccl's own on purpose."""
    own = {
        "ProcessGroup": {
            # The state that pynccl.mirror keeps in a group.
            *("comm_stream", "comm_streams", "adopt", "provider", "open_at_once", "open", "issue"),
            *("leave", "forbid", "make_comm_stream", "object_device", "abort", "alltoall"),
            *("transfer", "device_at_once", "new_unique_id", "give_up"),
        },
        "Work": {"source_rank"},
    }[name]
    ours = {method for method in dir(getattr(pynccl, name)) if not method.startswith("_")}
    theirs = set(dir(_of_torch(name)))
    if OLDER:
        own |= {"all_gather_single", "all_to_all_single", "reduce_scatter_single"}
    assert ours - theirs <= own


def test_all_names_resolve() -> None:
    for name in pynccl.__all__:
        assert getattr(pynccl, name) is not None
    assert set(pynccl.__all__) <= set(dir(pynccl))
    with pytest.raises(AttributeError, match="no attribute 'all_reduced'"):
        pynccl.all_reduced  # noqa: B018


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    loaded = _python(
        "import pynccl, pynccl.nccl, pynccl.raw\n"
        "print(*(name for name in ('torch', 'numpy') if name in sys.modules))"
    )
    assert loaded.strip() == ""


def test_without_torch() -> None:
    """The objects and nccl.h work; the mirror's names say what is missing."""
    printed = _python(
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


def test_the_one_list_of_names() -> None:
    """pynccl.__all__ is the list; the mirror has each of them, and its modules no others."""
    from pynccl.mirror.api import public

    names = public.names()
    assert set(names) == set(pynccl.__all__) - OWN == {*MIRRORED, *NOT_IN_TORCH}
    assert all(getattr(pynccl, name) is value for name, value in names.items())
    exported = {
        name
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("pynccl.mirror.api.") and module != public
        for name in getattr(module, "__all__", ())
    }
    assert exported
    assert exported <= set(names)


FUNCTIONS = [
    name
    for name in MIRRORED
    if name != "reduce_op"  # warns when it is looked at
    and inspect.isroutine(getattr(pynccl, name))
    and getattr(pynccl, name).__module__.startswith("pynccl.")
    and not name.startswith("_")
]


NEVER_FAILS = {
    *("get_pg_count", "is_available", "is_backend_available", "is_gloo_available"),
    *("is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched"),
    *("is_ucc_available", "is_xccl_available", "record_comm"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring(name: str) -> None:
    """Each function documents its parameters, result and errors, and the function it stands for."""
    function = getattr(pynccl, name)
    text = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    for parameter in signature.parameters:
        if not parameter.startswith("_"):
            assert re.search(rf"^    {parameter}: ", text, re.MULTILINE), parameter
    no_result = name in ("breakpoint", "destroy_process_group", "init_process_group")
    assert no_result or "Returns:" in text or "Yields:" in text
    assert name in NEVER_FAILS or "Raises:" in text
    assert f"torch.distributed.{name}" in text or not hasattr(torch_dist, name)
