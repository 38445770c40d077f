"""Generates docs/mirror.md: which names of torch.distributed pynccl has, and why others are absent.

python -m tools.mirror_table          # rewrite docs/mirror.md
python -m tools.mirror_table --check  # fail if it would change
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

import torch.distributed as torch_dist
from torch.distributed import distributed_c10d

import pynccl
from tests.mirror.since import SINCE
from tests.mirror.test_signatures import ABSENT as OF_DISTRIBUTED_C10D
from tests.mirror.test_signatures import ABSENT_MEMBERS
from tests.support.torch_suite import EXCEPTIONS

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
    "ReduceOp": "torch's own class; the bitwise operators are refused, NCCL has none",
    "P2POp": "tags are ignored, as by torch's NCCL backend",
    "barrier": "on GPUs it blocks the caller, as torch's does",
    "irecv": "from any source in groups of two; tags are ignored",
    "recv": "from any source in groups of two; tags are ignored",
    "isend": "to this rank itself only in a batch; tags are ignored",
    "send": "tags are ignored, as by torch's NCCL backend",
    "monitored_barrier": "with every backend",
    "record_comm": "as a range in torch's profiler",
    "get_backend_impl": "a `pynccl.nccl.Communicator`",
    "split_group": "also without `device_id`",
    "shrink_group": "`SHRINK_ABORT` where ranks have died: the other ranks do not wait for them",
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


def page() -> str:
    """Return the text of docs/mirror.md.

    Raises:
        KeyError: a name is neither mirrored nor in ABSENT.
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
    members = [
        f"| `{name}.{member}` | {reason} |"
        for name, absent in ABSENT_MEMBERS.items()
        for member, reason in sorted(absent.items())
    ]
    exceptions = [
        f"| `{pattern}` | {' and '.join(map(str, sizes))} | {reason} |"
        for pattern, (sizes, reason) in EXCEPTIONS["mirror"].items()
    ]
    return TEXT.format(
        names="\n".join(rows),
        versions="\n".join(versions),
        members="\n".join(members),
        exceptions="\n".join(exceptions),
    )


TEXT = """\
# The mirror

`import pynccl as dist` has the functions of `torch.distributed`: same names, same parameters,
same defaults, same errors for the same mistakes. This page is made by
`python -m tools.mirror_table`.

A script needs two changes: the import, and the name of the backend.

| backend | moves the tensors of | over |
|---|---|---|
| `"nccl"` | GPUs | libnccl.so.2 |
| `"host"` | CPUs of one machine | hostnccl, which comes with pynccl |
| `None`, `"cpu:host,cuda:nccl"` | both | each its own |

## What differs

* `"gloo"`, `"mpi"`, `"ucc"` are refused; the message says what to pass instead. So is `"nccl"`,
  alone or with others, where there is no GPU: at once on each rank, as with torch's NCCL backend.
  `None` is what the machine has.
* An operator is torch's `ReduceOp`, a `pynccl.nccl.RedOp` or a str: `ReduceOp.MAX`, `nccl.MAX` and
  `"max"` are the same, here, in `pynccl.nccl` and in `pynccl.ops`.
* With `"host"` the communicator of a group is made with the group. With `None` where there are
  GPUs, and with `"nccl"`, it is made with the first operation, or at once with `device_id`.
* List forms (`all_gather`, `gather`, `scatter`, `reduce_scatter`, `all_to_all`) are one NCCL group
  of operations directly on the tensors, without a flat buffer; `all_gather` and `all_to_all` take
  unequal sizes.
* Outside a batch, `send`, `recv`, `isend` and `irecv` have a communicator of their own for each
  direction between two ranks, so that no order of `isend` and `irecv` blocks another. Both are
  created at the first transfer, on GPUs with at most 8 CTAs unless `pg_options` sets `max_ctas`.
  The first `send` or `recv` waits for the other rank; `isend` and `irecv` do not, they connect in
  another thread. Only the two ranks take part: other ranks may be gone. The unique ids go through
  the store. On CPUs they were exchanged when the group was created, so the store may be gone, too.
* The cost: each pair of ranks that sends is two `ncclCommInitRankConfig`, and two communicators
  with buffers and threads of their own. A rank that sends to 63 others has 126 beside that of the
  group. A batch (`batch_isend_irecv`) needs none, and on GPUs, with `device_id`
  in `init_process_group`, transfers outside a batch use the communicator of the group, as torch's
  do: then they run in the order of their calls, and two ranks that both send before they receive
  can block each other.
* A batch uses the communicator of the group; if it is the group's first operation, all its ranks
  must take part.
* `new_group` and the creation of a communicator raise `DistBackendError` immediately if a rank has
  called `destroy_process_group` or if its process on the same machine has exited, and
  `DistStoreError` if a rank does not arrive within the timeout. Both name the rank. If the store is
  gone or does not answer, the error names the store. `split_group` and `shrink_group` use the
  timeout of the group.
* `reconfigure(group=None, timeout=None)`, which torch does not have, makes a group of the ranks
  still alive: see [reliability](reliability.md). Groups of the [backend](c10d.md) implement torch's
  `reconfigure()`, in which the script lists the handles of the ranks, including new processes.
* A rank that is not in a group that `new_group` or `split_group` makes gets
  `GroupMember.NON_GROUP_MEMBER` with every torch; before 2.14 torch returns None for some calls.
  Calls on that group behave as torch's: most warn and return None, the others raise torch's class
  of error. `get_process_group_ranks`, `get_group_rank` and `get_global_rank` answer for it.
* With `weights_only=True` the object functions write with torch.save, and objects are
  read by `torch.load(weights_only=True)`, and no code of a sender runs.
* `get_backend_impl()` is the `pynccl.nccl.Communicator` of a group. A group's timeout can be
  changed: `set_timeout()`.
* The first transfer with a rank raises immediately if the rank has called `destroy_process_group`
  or if its process on the same machine has exited. `destroy_process_group` waits for operations on
  GPUs as long as the timeout of the group; then it aborts them and raises.
* `pg_options` takes a `pynccl.nccl.Config`, but neither `Config(blocking=0)` nor one that shares
  resources (`split_share`, `shrink_share`): an abort of one group would end the operations of its
  parent.
* `recv` from any source works in groups of two ranks, where the source is known. Elsewhere it is
  refused: NCCL has no receive from any source. Tags are ignored.
* dtypes are NCCL's: int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, float32, float64,
  float8_e4m3fn, float8_e5m2; bool, of which `SUM` is "or"; complex64 and complex128 as pairs of
  reals, where the operator allows it. Others are refused.
* An error of NCCL is raised as `DistBackendError`, which is pynccl's `NcclError` as well.
* An operation that takes longer than the timeout of its group is ended, on the ranks that wait in
  it; the group cannot be used any more, the process can. The error says which ranks are missing,
  which they find out through the job's store: see [reliability.md](reliability.md).
* On GPUs such a timeout ends the process with SIGABRT, since `wait()` orders streams and the data
  would be used before an error could be raised. `pg_options=nccl.Config(on_timeout="raise")` or
  `PYNCCL_ON_TIMEOUT=raise` chooses errors instead.
* A script may end without `destroy_process_group`. After `fork`, a child cannot use its parent's
  groups; it can create its own. The other ranks detect the death of the parent even while the
  child (a `DataLoader` worker) is alive.
* torch.distributed can be used in the same process at the same time. The two share nothing, also
  where they use the same store.
* In a function for torch.compile each of these calls breaks the graph; `pynccl.ops` has collectives
  that do not, and that have gradients: see [extending.md](extending.md).
* torch's profiler sees no events of pynccl's operations but those of `record_comm`.

## Names

| torch.distributed | pynccl | |
|---|---|---|
{names}

The public members of torch's `ProcessGroup` and `Work` are there as well, but for these:

| member | why not |
|---|---|
{members}

## Versions of torch

Names, parameters and annotations are those of torch 2.15, whichever torch is installed. An older
one lacks these; a script that runs with torch.distributed too cannot use them there:

| since torch | |
|---|---|
{versions}

## PyTorch's own tests

`make test-torch-suite` runs `torch.testing._internal.distributed.distributed_test` with pynccl in
the place of torch.distributed, over CPU tensors, at world sizes 2 and 4. What passes with gloo
passes with pynccl, but for these:

| tests | ranks | why not |
|---|---|---|
{exceptions}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = page()
    if arguments.check:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
