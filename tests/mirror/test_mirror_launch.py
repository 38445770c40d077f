"""Proves that scripts start and end as with torch.distributed: mp.spawn, torchrun, URLs and stores,
with and without destroy_process_group, and across fork; and that a store that answers late does not
break the exit of the process (tests/c10d/test_exit.py has one that never answers).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.commands import free_port, run_python
from tests.support.tier import FULL

pytestmark = pytest.mark.long

pytest.importorskip("torch")

DEADLINE = 120  # seconds; starting Python with torch costs seconds on a small machine

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start Python with a script, or with other arguments."""
    script = tmp_path / "script.py"

    def run(
        code: str = "",
        *arguments: str,
        **environment: str,
    ) -> subprocess.Popen[str]:
        if code and not script.exists():
            script.write_text(textwrap.dedent(code))
        path = os.pathsep.join(sys.path)
        command = [argument.replace("{script}", str(script)) for argument in arguments]
        return warm.WholePopen(
            [sys.executable, *(command or [str(script)])],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for the end, and return what was printed: the output and the errors."""
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"not done after {DEADLINE} s:\n{out}\n{err}")
    assert process.returncode == code, f"exit {process.returncode}:\n{out}\n{err}"
    return out, err


WORK = """
    import os, sys
    import torch
    import pynccl as dist

    def work(*args, **init):
        dist.init_process_group(*args, **init)
        tensor = torch.ones(3) * (dist.get_rank() + 1)
        dist.all_reduce(tensor)
        group = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            dist.all_reduce(tensor, group=group)
        pending = dist.all_reduce(tensor, async_op=True)
        who = f"rank {dist.get_rank()} of {dist.get_world_size()}"
        print(f"{who}: {tensor[0].item():g}", flush=True)
"""

SPAWN = (
    WORK
    + """
    def main(rank, size, port, ends):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        work("host", rank=rank, world_size=size)
        if ends:
            dist.destroy_process_group()

    if __name__ == "__main__":
        port, ends, method = sys.argv[1:]
        given = (2, port, ends == "destroy")
        torch.multiprocessing.start_processes(main, given, nprocs=2, start_method=method)
"""
)


# Forks do not import torch again. How a process leaves: test_exit_without_destroy.
_SPAWNED = (("destroy", "spawn"), ("leave", "spawn")) if FULL else (("destroy", "fork"),)


def test_spawn(start: Start) -> None:
    for process in [start(SPAWN, "{script}", str(free_port()), *how) for how in _SPAWNED]:
        printed, _ = finish(process)
        assert "rank 0 of 2: " in printed
        assert "rank 1 of 2: " in printed


_PER_NODE = 3 if FULL else 2
SCRIPT = (
    WORK
    + """
    def main():
        work("host")
        assert dist.is_torchelastic_launched()
        dist.get_node_local_rank()

    if sys.argv[1:]:
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(1, 1, int(sys.argv[1]), start_method="fork",
                              rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0")
        elastic_launch(config, main)()
    else:
        main()
"""
)


def test_torchrun(start: Start) -> None:
    """Its agent hosts the store; the script passes only the backend."""
    command = ["{script}", str(_PER_NODE)]  # the same agent, whose ranks are forks
    if FULL:
        options = ("--nnodes=1", f"--nproc-per-node={_PER_NODE}", f"--master-port={free_port()}")
        command = ["-m", "torch.distributed.run", *options, "{script}"]
    printed, _ = finish(start(SCRIPT, *command))
    for rank in range(_PER_NODE):
        assert f"rank {rank} of {_PER_NODE}: " in printed


URLS = (
    WORK
    + """
    size, rank = 2, int(sys.argv[1])
    work("host", init_method=sys.argv[2], rank=rank, world_size=size)
    dist.destroy_process_group()
    if sys.argv[3] != "0":
        # The URL may have all of it.
        work("host", init_method=sys.argv[3] + f"?rank={rank}&world_size={size}")
        dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", int(sys.argv[4]), size, rank == 0)
    work("host", store=store, rank=rank, world_size=size)
"""
)


def test_urls_and_stores(start: Start, tmp_path: Path) -> None:
    tcp = f"tcp://127.0.0.1:{free_port()}"
    rest = (f"file://{tmp_path}/store", tcp, str(free_port()))
    processes = [start(URLS, "{script}", str(rank), *rest) for rank in (0, 1)]
    for rank, process in enumerate(processes):
        assert finish(process)[0].count(f"rank {rank} of 2: ") == 3


LEAVE = """
    import os, sys, time
    import torch
    import pynccl as dist

    how, count = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("host")
    tensor = torch.ones(300_000)
    for _ in range(count):
        dist.all_reduce(tensor)
    if how == "send":  # no rank waits for the last message
        if dist.get_rank() == 0:
            dist.isend(torch.full((300_000,), 5.0), 1)
        else:
            time.sleep(0.2)
            assert dist.recv(tensor, 0) == 0 and tensor[-1] == 5
    elif how == "raise" and dist.get_rank() == 1:
        raise KeyError("wrong")
    os.write(1, b"done\\n")
"""


def leave(start: Start, how: str, count: int, codes: list[int]) -> list[tuple[str, str]]:
    """Return the output of the ranks of a world, which exit with these statuses."""
    port, size = str(free_port()), str(len(codes))
    ranks = [
        start(
            LEAVE,
            "{script}",
            how,
            str(count),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            RANK=str(rank),
            WORLD_SIZE=size,
        )
        for rank in range(len(codes))
    ]
    return [finish(rank, code) for rank, code in zip(ranks, codes, strict=True)]


# Lines of Python, of C++ and of pynccl; torch's store warns of a rank that has left.
COMPLAINT = re.compile(
    r"^(Traceback|Exception ignored|terminate called|\[rank|pynccl|hostnccl|NCCL)", re.MULTILINE
)


# Rank 0, whose process hosts torch's TCPStore, ends while rank 1 does not call the store: a call in
# progress would fail. Rank 1 then has time to poll it.
OUTLIVE = """
    import os, sys, time
    import torch
    import {module} as dist
    from pynccl._internal.inquiry import watcher

    rank, url, ended = int(sys.argv[1]), *sys.argv[2:]
    dist.init_process_group({backend!r}, init_method=url, rank=rank, world_size=2)
    dist.barrier()
    if rank == 0:
        dist.barrier()
    else:
        with watcher._calls:
            dist.barrier()
            while not os.path.exists(ended):
                time.sleep(0.01)
        time.sleep(1.2)
"""


@pytest.mark.parametrize("backend", ["host", "pynccl"])
def test_a_rank_that_outlives_the_store_is_silent(
    start: Start, backend: str, tmp_path: Path
) -> None:
    """A call of torch's store then prints a C++ backtrace."""
    module = "pynccl" if backend == "host" else "pynccl.c10d, torch.distributed"
    code = textwrap.dedent(OUTLIVE).format(module=module, backend=backend)
    url, ended = f"tcp://127.0.0.1:{free_port()}", tmp_path / "ended"
    first, second = (start(code, "{script}", str(rank), url, str(ended)) for rank in (0, 1))
    assert finish(first) == ("", "")
    ended.touch()
    assert finish(second) == ("", "")


@pytest.mark.parametrize(("how", "count"), [("end", 0), ("end", 3), ("send", 3)])
def test_exit_without_destroy(start: Start, how: str, count: int) -> None:
    """The first rank that exits does not affect the others, and no rank prints an error."""
    for size in (2, 3, 3, 3) if FULL else (2,):
        for out, errors in leave(start, how, count, [0] * size):
            assert out == "done\n"
            assert not COMPLAINT.search(errors), errors


def test_an_exception_names_its_rank(start: Start) -> None:
    (first, _), (out, errors) = leave(start, "raise", 0, [0, 1])
    assert (first, out) == ("done\n", "")
    assert "[rank1]: KeyError: 'wrong'" in errors
    assert "[rank1]: Traceback (most recent call last):" in errors


FORK = """
    import os, sys, tempfile
    import torch
    import pynccl as dist

    def in_child(function):
        child = os.fork()
        if child == 0:
            try:
                function()
                sys.stdout.flush()
                os._exit(0)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def alone():
        store = dist.FileStore(tempfile.mktemp(), 1)
        dist.init_process_group("host", store=store, rank=0, world_size=1)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.barrier()

    def use(pg):
        assert not dist.is_initialized()
        for call in (lambda: dist.all_reduce(torch.ones(1)), lambda: dist.barrier(pg),
                     lambda: dist.isend(torch.ones(1), group_dst=0, group=pg)):
            try:
                call()
            except ValueError as error:
                print(error)
            else:
                raise AssertionError("it was used")
        alone()  # the child can make its own
        dist.destroy_process_group()

    assert in_child(alone) == 0  # after the import
    alone()
    pg = dist.group.WORLD
    assert in_child(lambda: use(pg)) == 0
    alone_again = torch.ones(1)
    dist.all_reduce(alone_again)  # the parent continues
    dist.destroy_process_group()
"""


def test_fork(start: Start) -> None:
    printed, _ = finish(start(FORK))
    assert "has not been initialized" in printed
    assert "before this process was forked" in printed


# The store's process is stopped; it ends, and thereby the call of the store returns, when the
# interpreter has begun to end.
_LATE = """
import os, signal, subprocess, sys, time
from torch.distributed import DistStoreError, TCPStore
from pynccl._internal.rendezvous import Rendezvous

server = subprocess.Popen([sys.executable, "-c", '''
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
port = int(server.stdout.readline())
store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
server.send_signal(signal.SIGSTOP)

class AtTheEnd:
    kill, sleep, pid = staticmethod(os.kill), staticmethod(time.sleep), server.pid
    def __del__(self, signal=signal.SIGKILL):
        self.kill(self.pid, signal)
        self.sleep(0.5)

sys.at_the_end = AtTheEnd()
try:
    Rendezvous(store, 0).gather("x", range(2), b"", 0.5)
except DistStoreError as error:
    print(error)
"""


def test_exit_after_a_store_did_not_answer() -> None:
    ran = run_python("-W", "ignore", "-c", _LATE, popen=warm.WholePopen)
    assert ran.returncode == 0, ran
    assert "127.0.0.1" in ran.stdout
    assert "has not answered" in ran.stdout


_SLOW = """
import time
from torch.distributed import DistStoreError, HashStore, Store
from pynccl._internal.rendezvous import Rendezvous

class Slow(Store):
    def __init__(self):
        super().__init__()
        self.store = HashStore()
    def check(self, keys):
        time.sleep(0.4)
        return self.store.check(keys)
    def set(self, key, value):
        self.store.set(key, value)
    def add(self, key, amount):
        return self.store.add(key, amount)

try:
    Rendezvous(Slow(), 0).gather("x", range(2), b"", 1.4)
except DistStoreError as error:
    print(error)
"""


def test_a_slow_store_is_not_silent() -> None:
    ran = run_python("-c", _SLOW)
    assert "Timed out waiting 1.4 seconds for rank 1 of 2 in 'x'" in ran.stdout, ran
