"""Launches test functions with pynccl.testing: reused processes, test options, GPUs.

Without a GPU, tests of the cuda provider are skipped. On GPUs a test is skipped if it has more
ranks than the GPUs can run, or if the loaded NCCL lacks a function that it calls.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

from pynccl.testing import Launcher as _Launcher
from pynccl.testing import LaunchError, Outcome, Run
from pynccl.testing._arguments import Environment
from pynccl.testing._launcher import Process
from tests.support import warm
from tests.support.rank import Rank

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["LaunchError", "Launcher", "Options", "Outcome", "Run", "skip_old", "too_old"]

_GRACE = 10.0  # seconds for the other ranks to end after one has failed
# The upper bound of any launch in seconds, regardless of its timeout (set by tests/gpu_day.py).
_LIMIT = float(os.environ.get("PYNCCL_TEST_LIMIT", "inf"))
# Ranks with torch have separate processes, so that those of other tests do not import it.
_WITH_TORCH = "PYTEST_WITH_TORCH"
_ENTER_TORCH = (
    "tests.c10d.",
    "tests.lab.",
    "tests.mirror.",
    "tests.nccl.test_arguments",
    "tests.nccl.test_array_values",
    "tests.nccl.test_async",
    "tests.nccl.test_borrow",
    "tests.nccl.test_memory",
    "tests.reliability.test_forked_children",
    "tests.support.in_world",
    "tests.support.torch_suite",
    "tests.weights.",
)


class Options(TypedDict, total=False):
    """Options of a launch.

    Attributes:
        provider: the library of the ranks; "host" by default.
        timeout: seconds until ranks that still run are killed.
        threads: ranks as threads of one process.
        ids: the number of unique ids of the world.
        env: environment variables for the processes.
    """

    provider: str
    timeout: float
    threads: bool
    ids: int
    env: Mapping[str, str]


class Launcher(_Launcher):
    """Launches worlds and reuses their processes in later tests."""

    def __init__(self, rank_type: type[Rank] = Rank) -> None:
        super().__init__(rank_type)

    def is_reusable(self, outcome: Outcome) -> bool:
        """Reuse processes even after a call that the loaded NCCL lacks, since nothing was sent."""
        return outcome.ok or bool(too_old(str(outcome.error)))

    def _start_process(self, environment: Environment, *, fresh: bool) -> Process:
        variables = dict(environment)
        if variables.get(_WITH_TORCH):
            return warm.start_rank(self, environment, fresh=fresh)
        popen = warm.LightPopen
        server = warm.server_of({**warm.own_environment(), **variables}, popen.modules)
        return Process(environment, fresh=fresh, popen=popen, parent=server.pid)

    def start(
        self,
        world_size: int,
        fn: Callable[..., Any],
        *args: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Run:
        """Start a world, with torch imported if the ranks need it."""
        if options.get("provider") == "cuda" or _imports_torch(fn.__module__):
            env = options.get("env") or {}
            each = [env] * world_size if isinstance(env, Mapping) else env
            options["env"] = [{_WITH_TORCH: "1", **variables} for variables in each]
        return super().start(world_size, fn, *args, **options)

    def __call__(
        self,
        nranks: int,
        function: Callable[..., Any],
        *args: object,
        fresh: bool = False,
        **options: Unpack[Options],
    ) -> list[Any]:
        """Call ``function(rank, *args)`` on every rank, and return the results by rank.

        Args:
            nranks: the world size.
            function: a module-level function; its first argument is a Rank.
            *args: picklable arguments.
            fresh: whether to use new processes, which end with the launch.
            **options: see Options.

        Raises:
            LaunchError: a rank raised, died, or timed out.
        """
        with self._begin(nranks, function, args, fresh=fresh, **options) as run:
            try:
                return run.results()
            except LaunchError as error:
                if options.get("provider") == "cuda":
                    skip_old(error.outcomes)
                raise

    def outcomes(
        self,
        nranks: int,
        function: Callable[..., Any],
        *args: object,
        while_running: Callable[[Run], None] | None = None,
        **options: Unpack[Options],
    ) -> list[Outcome]:
        """Launch ranks that may fail in new processes, and return their outcomes by rank.

        The others then have until the timeout, since a test continues without the failed ranks.

        Args:
            nranks: the world size.
            function: as for a call.
            *args: as for a call.
            while_running: called in this process while the ranks run, for example to kill some.
            **options: see Options.
        """
        with self._begin(nranks, function, args, fresh=True, patient=True, **options) as run:
            if while_running:
                while_running(run)
            outcomes = run.outcomes()
        if options.get("provider") == "cuda":
            skip_old([outcome for outcome in outcomes if not outcome.died])
        return outcomes

    def _begin(
        self,
        nranks: int,
        function: Callable[..., Any],
        args: tuple[object, ...],
        *,
        fresh: bool,
        patient: bool = False,
        provider: str = "host",
        timeout: float = 60,
        threads: bool = False,
        ids: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> Run:
        environments = [dict(env or {})] * nranks
        if provider == "cuda":
            from tests.support import gpu

            if reason := gpu.missing() or gpu.too_many(nranks, threads=threads):
                pytest.skip(reason)
            environments = [
                {**gpu.environment(nranks, rank), **variables}
                for rank, variables in enumerate(environments)
            ]
        limit = min(timeout, _LIMIT)
        return self.start(
            nranks,
            function,
            args,
            provider=provider,
            threads=threads,
            timeout=limit,
            grace=limit if patient else _GRACE,
            unique_ids=ids,
            env=environments,
            fresh=fresh,
        )


def _imports_torch(module: str) -> bool:
    return module.startswith(_ENTER_TORCH) or hasattr(sys.modules.get(module), "torch")


def too_old(text: str) -> str:
    """The line of an error that says that the loaded NCCL lacks a function, else ""."""
    found = re.search(r".*NCCL [\d.]+[;,] the loaded.*", text)
    return found[0] if found else ""


def skip_old(outcomes: list[Outcome]) -> None:
    """Skip the test if ranks failed because their NCCL is too old, and others waited for them."""
    failed = [outcome for outcome in outcomes if not outcome.ok]
    old = [text for outcome in failed if (text := too_old(str(outcome.error)))]
    waited = [outcome for outcome in failed if outcome.died.startswith("not done")]
    if old and len(old) + len(waited) == len(failed):
        pytest.skip(old[0])
