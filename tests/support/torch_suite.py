"""Runs PyTorch's own tests of torch.distributed on pynccl.

The torch wheel contains the tests (torch.testing._internal.distributed.distributed_test). Here they
run on CPU tensors, in processes that are reused between tests:

* ``mirror``: with ``dist`` replaced by pynccl and the backend "gloo" by "host",
* ``backend``: with torch.distributed and the backend "pynccl",
* ``gloo``: with torch and gloo, for comparison.

A test that passes with gloo must pass with the others, except those in EXCEPTIONS.

    python -m tests.support.torch_suite backend --ranks 2 4
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.support.launcher import Launcher
    from tests.support.rank import Rank

DDP = "tests DistributedDataParallel, which uses torch's own C++ ProcessGroup"
INSIDE = "tests a part of torch that calls torch.distributed by itself"

Exceptions = dict[str, tuple[tuple[int, ...], str]]

# Tests that pass with gloo but not with pynccl: pattern, world sizes, reason.
_OF_BOTH: Exceptions = {
    "test_sparse_all_reduce_sum": ((2, 4), "NCCL has no sparse tensors"),
    "test_send_recv_any_source*": (
        (4,),
        "NCCL has no receive from any source; in a group of two it passes",
    ),
}
_OF_MIRROR: Exceptions = {
    "test_get_future": ((2, 4), "calls a method of ProcessGroup that pynccl does not mirror"),
    "test_all_*_coalesced_*": ((2, 4), "tests deprecated functions that pynccl does not mirror"),
    "test_*ddp*": ((2, 4), DDP),
    "test_*DistributedDataParallel*": ((2, 4), DDP),
    "test_accumulate_gradients_*": ((2, 4), DDP),
    "test_get_data_parallel_params": ((2, 4), DDP),
    "test_grads_same_across_ranks_with_no_sync": ((2, 4), DDP),
    "test_invalid_static_graph": ((2, 4), DDP),
    "test_static_graph_*": ((2, 4), DDP),
    "test_output_unused_in_loss_*": ((2, 4), DDP),
    "test_undefined_grad_parity_unused_parameters": ((2, 4), DDP),
    "test_different_graph_across_ranks": ((2, 4), DDP),
    "test_detect_ddp_is_actually_static": ((2, 4), DDP),
    "test_sync_bn_logged": ((2, 4), DDP),
    "test_stateless_api_with_ddp": ((2, 4), DDP),
    "test_skip_all_reduce_unused_parameters": ((2, 4), DDP),
    "test_verify_model_across_rank_*": ((2, 4), DDP),
    "test_compute_bucket_assignment_*": ((2, 4), DDP),
    "test_dump_DDP_relevant_env_vars": ((2, 4), DDP),
    "test_post_localSGD_*": ((2, 4), DDP),
    "test_*model_averager*": ((2, 4), INSIDE),
    "test_average_parameters": ((2, 4), INSIDE),
    "test_SyncBatchNorm_process_group": ((2, 4), INSIDE),
    "test_DistributedSampler_padding": ((2, 4), INSIDE),
}
_OF_BACKEND: Exceptions = {
    "test_monitored_barrier_*": ((2, 4), "torch's monitored_barrier refuses all backends but gloo"),
    "test_ddp_logging_data_cpu": ((2, 4), "torch calls a backend that is not its own 'custom'"),
}
EXCEPTIONS: dict[str, Exceptions] = {
    "mirror": {**_OF_BOTH, **_OF_MIRROR},
    "backend": {**_OF_BOTH, **_OF_BACKEND},
    "gloo": {},
}


class Result(NamedTuple):
    """The outcome of a test on all ranks."""

    name: str
    outcome: str  # passed, skipped, failed
    why: str = ""


def reason_of_exception(subject: str, name: str, nranks: int) -> str:
    """The reason why a test need not pass, or an empty string. subject: a key of EXCEPTIONS."""
    for pattern, (sizes, reason) in EXCEPTIONS[subject].items():
        if nranks in sizes and fnmatch.fnmatchcase(name, pattern):
            return reason
    return ""


class _LikeGloo(str):
    """A backend name that compares equal to gloo's, because tests branch on it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")

    def __str__(self) -> str:
        return "".join(self)


def _module(subject: str) -> Any:
    """The tests, prepared for a subject. A process can do this for only one subject."""
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    # The skip conditions evaluated above are gloo's.
    if distributed_test.BACKEND != "gloo":
        return distributed_test
    if subject == "mirror":
        import pynccl

        distributed_test.BACKEND = "host"
        distributed_test.dist = pynccl
        common_distributed.c10d = pynccl
        for name in ("_get_default_group", "get_world_size"):
            setattr(distributed_test, name, getattr(pynccl, name))
    if subject == "backend":
        import pynccl.c10d

        distributed_test.BACKEND = _LikeGloo("pynccl")
    return distributed_test


def test_names() -> list[str]:
    """All test names, in file order."""
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", "2")
    base = _module("gloo").DistributedTest._DistTestBase
    return [name for name in vars(base) if name.startswith("test_")]


@contextlib.contextmanager
def _initialized(module: Any, case: Any, folder: str) -> Iterator[None]:
    """Set up and tear down as the tests' own launcher does."""
    dist = module.dist
    dist.init_process_group(
        init_method=f"file://{folder}/first",
        backend=module.BACKEND,
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=case.rank,
        timeout=timedelta(seconds=20),
    )
    module.Barrier.barrier_id = 0
    case._barrier()
    try:
        yield
        case._barrier()
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def run_one(rank: Rank, name: str, folder: str, subject: str) -> Result:
    """Run one test as one rank."""
    import torch

    module = _module(subject)

    class Case(module.TestDistBackend, module.DistributedTest._DistTestBase):
        pass

    os.environ["TEMP_DIR"] = folder
    module.INIT_METHOD = f"file://{folder}/second"
    torch.manual_seed(0)
    test = getattr(Case, name)
    if getattr(test, "__unittest_skip__", False):
        return Result(name, "skipped", test.__unittest_skip_why__)
    case = Case(name)
    case.rank = rank.rank
    started = False
    try:
        with _initialized(module, case, folder):
            started = True
            getattr(case, name)()
    except unittest.SkipTest as skip:
        return Result(name, "skipped", str(skip))
    except SystemExit as left:
        if not started:
            raise
        return Result(name, "skipped", f"exit {left.code}")
    return Result(name, "passed")


def run(launch: Launcher, name: str, nranks: int, subject: str, timeout: float = 90) -> Result:
    """Run one test on all ranks, in processes that are replaced after a failure."""
    from tests.support.launcher import LaunchError

    env = {"SUITE": subject, "BACKEND": "gloo", "WORLD_SIZE": str(nranks), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir"):
            Path(folder, part).mkdir()
        try:
            results = launch(nranks, run_one, name, folder, subject, env=env, timeout=timeout)
        except LaunchError as failure:
            return Result(name, "failed", str(failure))
    outcomes = {result.outcome for result in results}
    return results[0] if outcomes == {"skipped"} else Result(name, "passed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("subject", choices=EXCEPTIONS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--all", action="store_true", help="run the exceptions too")
    parser.add_argument("-k", default="*", metavar="PATTERN", help="only tests with such names")
    arguments = parser.parse_args()
    from tests.support.launcher import Launcher

    if arguments.subject == "backend":
        from pynccl.c10d.build import build

        build()  # takes longer than the time limit of a test
    failed = []
    with Launcher() as launch:
        for nranks in arguments.ranks:
            counts = {"passed": 0, "skipped": 0, "failed": 0, "exception": 0}
            started = time.monotonic()
            for name in fnmatch.filter(test_names(), arguments.k):
                if not arguments.all and reason_of_exception(arguments.subject, name, nranks):
                    counts["exception"] += 1
                    continue
                result = run(launch, name, nranks, arguments.subject)
                counts[result.outcome] += 1
                print(f"{nranks} ranks  {result.outcome:8} {name}", flush=True)
                if result.outcome == "failed":
                    failed.append(result)
                    print(result.why, flush=True)
            seconds = time.monotonic() - started
            print(f"{nranks} ranks: {counts} in {seconds:.0f} s", flush=True)
    return bool(failed)


if __name__ == "__main__":
    # Under its own name, by which the ranks' processes import it.
    from tests.support import torch_suite  # noqa: PLW0406

    sys.exit(torch_suite.main())
