"""Starts ranks as processes or threads, and reuses the processes for later launches."""

from __future__ import annotations

import contextlib
import multiprocessing.spawn
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from pynccl.testing import _worker
from pynccl.testing._rank import Outcome, Rank
from pynccl.testing._run import Environment, Process, Run
from pynccl.testing._worker import Job

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Launcher", "Options", "launch"]

T = TypeVar("T")

_GRACE = 10.0
_MAKE_IDS = 60.0  # seconds to create unique ids, including the start of a process
# The part of multiprocessing's preparation data that a worker requires to import the main module.
_MAIN = ("init_main_from_name", "init_main_from_path", "sys_argv", "dir")


class Options(TypedDict, total=False):
    """Launch options: the keyword arguments of :meth:`Launcher.start`."""

    provider: str
    threads: bool
    timeout: float | None
    grace: float
    unique_ids: int
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None
    fresh: bool


class Launcher:
    """Launches ranks on worker processes that are reused from one launch to the next.

    Processes are reused only for the same environment variables. After a failed launch, its
    processes are replaced. As a context manager, it ends all processes on exit. They also end with
    the thread that started them. Not thread-safe.

    Args:
        rank_type: the subclass of :class:`Rank` to pass to functions.
    """

    def __init__(self, rank_type: type[Rank] = Rank) -> None:
        self._rank_type = rank_type
        self._idle: dict[Environment, list[Process]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all idle processes."""
        idle, self._idle = self._idle, {}
        for processes in idle.values():
            for process in processes:
                process.close()

    def is_reusable(self, outcome: Outcome) -> bool:
        """Return whether the process of a rank is reused after an outcome; for subclasses.

        Args:
            outcome: how the rank ended.

        Returns:
            True if the rank's function returned.
        """
        return outcome.ok

    def launch(
        self,
        world_size: int,
        fn: Callable[..., T],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[Options],
    ) -> list[T]:
        """Call ``fn(rank, *args, **kwargs)`` on every rank and wait for all ranks.

        Args:
            world_size: how many ranks to start.
            fn: the function, as for :func:`pynccl.testing.launch`.
            args: positional arguments after the rank; picklable.
            kwargs: keyword arguments; picklable.
            **options: as for :meth:`start`.

        Returns:
            What ``fn`` returned, by rank.

        Raises:
            LaunchError: a rank failed, died or timed out.
            TypeError, ValueError, RuntimeError: as for :meth:`start`.
        """
        with self.start(world_size, fn, args, kwargs, **options) as run:
            return run.results()

    def start(
        self,
        world_size: int,
        fn: Callable[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        provider: str = "host",
        threads: bool = False,
        timeout: float | None = 60.0,
        grace: float = _GRACE,
        unique_ids: int = 1,
        env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        fresh: bool = False,
    ) -> Run:
        """Start ``fn(rank, *args, **kwargs)`` on every rank without waiting for it.

        Args:
            world_size: how many ranks to start.
            fn: the function, as for :func:`pynccl.testing.launch`.
            args: positional arguments after the rank; picklable.
            kwargs: keyword arguments; picklable.
            provider: the provider of :attr:`Rank.comm`: ``"host"``, or ``"cuda"`` for NCCL on GPUs.
                With "cuda", torch is imported first if it is installed, so that its NCCL is used.
            threads: run the ranks as threads of one process instead of a process each.
            timeout: seconds for the whole launch, including process startup; None for no limit.
                Ranks that exceed it are killed, and the error shows their stacks.
            grace: seconds for the other ranks to end after one has failed.
            unique_ids: the number of unique ids to create; 0 if ``fn`` does not use any.
            env: environment variables in addition to the caller's, or a sequence of them, one for
                each rank (with ``threads``, the first applies).
            fresh: whether to use new processes and end them with the run.

        Returns:
            The run, for use in a ``with`` statement.

        Raises:
            TypeError: ``fn``, ``args`` or ``kwargs`` cannot be pickled.
            ValueError: ``world_size`` is less than 1, or the length of ``env`` differs from it.
            RuntimeError: called while a rank's process imports the main module.
        """
        if _worker.is_importing_main():
            raise RuntimeError(
                "launch was called while a rank's process imports the main module; "
                'put the call under if __name__ == "__main__":'
            )
        if world_size < 1:
            raise ValueError(f"world_size is {world_size}, it must be at least 1")
        payload = _pickle(self._rank_type, fn, args, kwargs)
        environments = _environments(env, world_size)
        hosted = [list(range(world_size))] if threads else [[rank] for rank in range(world_size)]
        processes: list[Process] = []
        folder = None
        try:
            for ranks in hosted:
                processes.append(self._process(environments[ranks[0]], fresh=fresh))
            folder = tempfile.mkdtemp(prefix="pynccl-launch-")
            job = Job(
                payload,
                main=_describe_main() if b"__main__" in payload else None,
                ranks=[],
                world_size=world_size,
                provider=provider,
                unique_ids=[],
                init_method=Path(folder, "store").as_uri(),
            )
            if unique_ids:
                job.unique_ids = self._make_ids(processes[0], unique_ids, provider)
            for process, job.ranks in zip(processes, hosted, strict=True):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died
                    process.send(job)
        except BaseException:
            self._take_back(processes, False)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return Run(
            self._take_back,
            self.is_reusable,
            processes,
            hosted,
            timeout=timeout,
            grace=grace,
            folder=folder,
        )

    def _process(self, environment: Environment, *, fresh: bool) -> Process:
        idle = self._idle.get(environment, [])
        while idle and not fresh:
            process = idle.pop(0)
            if process.popen.poll() is None:
                return process
            process.close()
        return self._start_process(environment, fresh=fresh)

    def _start_process(self, environment: Environment, *, fresh: bool) -> Process:
        return Process(environment, fresh=fresh)

    def _make_ids(self, process: Process, count: int, provider: str) -> list[bytes]:
        payload = _pickle(Rank, _worker.make_ids, (count, provider), None)
        process.send(Job(payload, None, [0], 1, provider, [], ""))
        run = Run(
            self._take_back,
            self.is_reusable,
            [process],
            [[0]],
            timeout=_MAKE_IDS,
            grace=0,
            folder=None,
        )
        ids: list[bytes] = run.results()[0]
        return ids

    def _take_back(self, processes: list[Process], reusable: bool) -> None:
        for process in reversed(processes):
            if reusable and not process.fresh:
                self._idle.setdefault(process.environment, []).insert(0, process)
            elif reusable:
                process.close()  # lets it write the files of PYNCCL_TRACE and PYNCCL_RECORD
            else:
                process.kill()


def launch(
    world_size: int,
    fn: Callable[..., T],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    **options: Unpack[Options],
) -> list[T]:
    """Call ``fn(rank, *args, **kwargs)`` on every rank of a new launch and wait for all ranks.

    When it returns or raises, all processes have ended. Ranks write to the stdout and stderr of the
    caller.

    Args:
        world_size: how many ranks to start.
        fn: the function; its first argument is a :class:`Rank`. It must be picklable: defined at
            the top level of a module, or of a script whose work is guarded by
            ``if __name__ == "__main__"``.
        args: positional arguments after the rank; picklable.
        kwargs: keyword arguments; picklable.
        **options: provider, threads, timeout, grace, unique_ids and env of :meth:`Launcher.start`.

    Returns:
        What ``fn`` returned, by rank. It must be picklable.

    Raises:
        LaunchError: a rank raised, died or timed out. The text contains the traceback of each
            failed rank.
        TypeError, ValueError, RuntimeError: as for :meth:`Launcher.start`.
    """
    with Launcher() as launcher:
        return launcher.launch(world_size, fn, args, kwargs, **options)


def _pickle(
    rank_type: type[Rank],
    fn: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None,
) -> bytes:
    try:
        return pickle.dumps((rank_type, fn, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise TypeError(
            f"fn, args and kwargs must be picklable (fn at the top level of a module): {error}"
        ) from error


def _environments(
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None, world_size: int
) -> list[Environment]:
    """Return the variables of each rank, as keys of the idle processes."""
    if env is None or isinstance(env, Mapping):
        env = [env or {}] * world_size
    if len(env) != world_size:
        raise ValueError(f"env has {len(env)} elements, world_size is {world_size}")
    return [tuple(sorted(variables.items())) for variables in env]


def _describe_main() -> dict[str, Any]:
    """Describe how a worker imports this process's main module, as multiprocessing does."""
    data = multiprocessing.spawn.get_preparation_data("rank")
    return {key: value for key, value in data.items() if key in _MAIN}
