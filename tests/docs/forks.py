"""Runs the programs of pages in processes forked from one that has imported torch.

Importing it would take seconds in each of them.

``forks.py serve SOCKET`` is that process, until its stdin is closed. ``forks.py SOCKET python ...``
and ``forks.py SOCKET torchrun --nproc-per-node N SCRIPT ...`` request processes from it, and exit
with their status.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from types import CodeType

_START = 120.0  # seconds until the server has imported torch
_LARGEST = 1 << 17  # bytes of a request


def serve(path: str) -> tuple[CodeType, bool]:
    """Fork a process for each request; return in each the program to execute."""
    import torch
    import torch._dynamo  # as every optimizer does
    import torch.distributed.fsdp

    del torch
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            readable, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in readable:
                os._exit(0)  # finalizing an interpreter with torch takes a second
            connection = listener.accept()[0]
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    request, streams, _, _ = socket.recv_fds(connection, _LARGEST, 3)
    return _run(connection, streams, **json.loads(request))


def _run(
    connection: socket.socket,
    streams: list[int],
    *,
    program: str,
    arguments: list[str],
    folder: str,
    env: dict[str, str],
) -> tuple[CodeType, bool]:
    from torch._C._distributed_c10d import TCPStore

    from tests.support import warm
    from tests.support.commands import free_port

    added: list[dict[str, str]] = [{}]  # added to the environment of each process
    if program == "torchrun":
        option, nranks, *arguments = arguments
        assert option == "--nproc-per-node", option
        port = free_port()
        of_all = {"WORLD_SIZE": nranks, "LOCAL_WORLD_SIZE": nranks, "MASTER_ADDR": "localhost"}
        of_all |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        ranks = map(str, range(int(nranks)))
        added = [{**of_all, "RANK": rank, "LOCAL_RANK": rank} for rank in ranks]
    processes: dict[int, int] = {}  # their ids, by the descriptors that wait for them
    for variables in added:
        child = os.fork()
        if child == 0:
            connection.close()
            request = warm.Request(arguments, env | variables, folder, [0, 1, 2], False, False)
            return (program == "python" and _serve_ranks()) or warm.become(request, streams)
        processes[os.pidfd_open(child)] = child
    for stream in streams:
        os.close(stream)
    if program == "torchrun":  # the ranks wait for it
        store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    status = 0
    while processes:
        ready, _, _ = select.select([connection.fileno(), *processes], [], [])
        if connection.fileno() in ready:  # the command was killed
            break
        for descriptor in ready:
            ended = os.waitstatus_to_exitcode(os.waitpid(processes.pop(descriptor), 0)[1])
            if ended and not status:
                status = 1 if program == "torchrun" else ended
                for other in processes.values():
                    os.kill(other, signal.SIGTERM)
    else:
        connection.send(str(status).encode())
    if program == "torchrun":
        del store
    os.killpg(0, signal.SIGKILL)  # and whatever they have started
    raise AssertionError


def _serve_ranks() -> tuple[CodeType, bool] | None:
    """Fork a process that forks the ranks launched by this one; return in each the program to
    execute, and None in this one.
    """
    from pynccl.testing import Launcher
    from tests.support import warm

    ours, theirs = socket.socketpair()
    server = os.fork()
    if server == 0:
        ours.close()
        return warm.serve(theirs.detach(), ())
    theirs.close()
    warm.inherited = warm.Server(server, ours)
    Launcher._start_process = warm.start_rank  # type: ignore[assignment, method-assign]
    return None


def ask(path: str, program: str, arguments: list[str]) -> None:
    """Run a program, and exit with its status."""
    if "LD_PRELOAD" in os.environ or "PMI_FD" in os.environ:  # of mpiexec, open in this process
        os.execv(sys.executable, [sys.executable, *arguments])
    process: dict[str, object] = {"folder": os.getcwd(), "env": {**os.environ}}
    request = {"program": program, "arguments": arguments, **process}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deadline = time.monotonic() + _START
    while True:
        try:
            connection.connect(path)
            break
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline, "the server has not started"
            time.sleep(0.05)
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    answer = connection.recv(16)
    assert answer, "the server has ended"
    status = int(answer)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        main = serve(sys.argv[2])
        from tests.support import warm

        warm.run(*main)
    else:
        ask(sys.argv[1], sys.argv[2], sys.argv[3:])
