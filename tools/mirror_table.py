"""Generates the tables of docs/mirror.md: the mirrored names, and why others are absent.

Run it after a change: python -m tools.mirror_table
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch.distributed as torch_dist
from torch.distributed import distributed_c10d

import pynccl
from tests.mirror.since import SINCE
from tests.mirror.test_signatures import ABSENT as OF_DISTRIBUTED_C10D
from tests.support.torch_suite import EXCEPTIONS
from tools import pages

PAGE = Path(__file__).parents[1] / "docs" / "mirror.md"

ABOVE = "built on torch's process groups, not part of this API"

ABSENT = {
    **OF_DISTRIBUTED_C10D,
    "BuiltinCommHookType": "of DistributedDataParallel",
    "DeviceMesh": ABOVE,
    "GradBucket": "of DistributedDataParallel",
    "Logger": "of DistributedDataParallel",
    "RankType": "of torch's own C++ layer",
    "Reducer": "of DistributedDataParallel",
    "init_device_mesh": ABOVE,
    "remote_device": "of torch's RPC",
}

NOTES = {
    "Backend": "its backends are `nccl` and `host`; `register_backend` is absent",
    "Work": "pynccl's own class",
    "ProcessGroup": "pynccl's own class",
    "ReduceOp": "torch's own class; bitwise operators are rejected, NCCL has none",
    "P2POp": "tags are ignored, as by torch's NCCL backend",
    "barrier": "on GPUs it blocks the caller, as in torch",
    "irecv": "from any source in groups of two; tags are ignored",
    "recv": "from any source in groups of two; tags are ignored",
    "isend": "to the own rank only in a batch; tags are ignored",
    "send": "tags are ignored, as by torch's NCCL backend",
    "monitored_barrier": "with every backend",
    "get_backend_impl": "a `pynccl.nccl.Communicator`",
    "split_group": "also works without `device_id`",
    "shrink_group": "use `SHRINK_ABORT` if ranks have died: the other ranks do not wait for them",
    "is_gloo_available": "False",
    "is_mpi_available": "False",
    "is_ucc_available": "False",
    "is_xccl_available": "False",
}


def names_of_torch() -> list[str]:
    """The public names of distributed_c10d, and those of torch.distributed except modules.

    Names that the installed torch lacks come from the table of versions.
    """
    names = set(distributed_c10d.__all__)
    names |= {name for name in SINCE if name.isidentifier() and not name.startswith("_")}
    for name in set(dir(torch_dist)) - names:
        value = getattr(torch_dist, name)
        own = getattr(value, "__module__", "").startswith(("torch.distributed", "torch._C"))
        if not name.startswith("_") and not isinstance(value, ModuleType) and own:
            names.add(name)
    return sorted(names | set(ABSENT), key=str.lower)


def page(text: str) -> str:
    """Return docs/mirror.md with its tables replaced.

    Args:
        text: the page.

    Raises:
        KeyError: a name is neither mirrored nor in ABSENT.
        ValueError: the page has no place for a table.
    """
    rows = []
    for name in names_of_torch():
        if name in pynccl.__all__:
            rows.append(f"| `{name}` | mirrored | {NOTES.get(name, '')} |")
        else:
            rows.append(f"| `{name}` | absent | {ABSENT[name]} |")
    versions = [
        f"| {major}.{minor} | " + ", ".join(f"`{name}`" for name in of_version) + " |"
        for major, minor in sorted(set(SINCE.values()))
        if (of_version := sorted(name for name, since in SINCE.items() if since == (major, minor)))
    ]
    exceptions = [
        f"| `{pattern}` | {' and '.join(map(str, sizes))} | {reason} |"
        for pattern, (sizes, reason) in EXCEPTIONS["mirror"].items()
    ]
    tables = {
        "names": ["| torch.distributed | pynccl | |", "|---|---|---|", *rows],
        "versions": ["| since torch | |", "|---|---|", *versions],
        "exceptions": ["| tests | ranks | reason |", "|---|---|---|", *exceptions],
    }
    for name, lines in tables.items():
        text = pages.replaced(text, name, lines)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
