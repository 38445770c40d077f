"""Runs the scripts of pages as torchrun does, in processes forked from one that has imported torch:
importing it takes seconds in torchrun and in every rank.

``torchrun.py serve SOCKET`` is that process, until its stdin ends;
``torchrun.py SOCKET --nproc-per-node N SCRIPT ...`` asks it for ranks and ends as they do.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

_START = 120.0  # seconds until the server has imported torch
_LARGEST = 1 << 17  # bytes of a request


def serve(path: str) -> None:
    """Fork a process for each request; return in a rank's process when its script is done."""
    import torch
    import torch._dynamo  # as every optimizer does
    import torch.distributed.fsdp

    del torch
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            readable, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in readable:
                return
            connection = listener.accept()[0]
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    request, streams, _, _ = socket.recv_fds(connection, _LARGEST, 2)
    _run_ranks(connection, streams, **json.loads(request))


def _run_ranks(
    connection: socket.socket,
    streams: list[int],
    *,
    nranks: int,
    argv: list[str],
    folder: str,
    env: dict[str, str],
) -> None:
    from torch._C._distributed_c10d import TCPStore

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    of_all = {"WORLD_SIZE": nranks, "LOCAL_WORLD_SIZE": nranks, "MASTER_ADDR": "localhost"}
    of_all |= {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    ranks: dict[int, int] = {}  # process ids by the descriptors that wait for them
    for rank in range(nranks):
        child = os.fork()
        if child == 0:
            connection.close()
            variables = of_all | {"RANK": rank, "LOCAL_RANK": rank}
            _become(streams, argv, folder, env | {k: str(v) for k, v in variables.items()})
            return
        ranks[os.pidfd_open(child)] = child
    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)  # ranks wait for it
    status = 0
    while ranks:
        ready, _, _ = select.select([connection.fileno(), *ranks], [], [])
        if connection.fileno() in ready:  # the command was killed
            break
        for descriptor in ready:
            ended = os.waitpid(ranks.pop(descriptor), 0)[1]
            if ended and not status:
                status = 1
                for other in ranks.values():
                    os.kill(other, signal.SIGTERM)
    else:
        connection.send(bytes([status]))
    del store
    os.killpg(0, signal.SIGKILL)  # and whatever the ranks have started


def _become(streams: list[int], argv: list[str], folder: str, env: dict[str, str]) -> None:
    """Run a script in this process as Python runs it in a new one."""
    import types

    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    path = Path(argv[0]).resolve()
    sys.path[:0] = [str(path.parent), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    main = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    exec(compile(path.read_text(), argv[0], "exec"), vars(main))


def ask(path: str, arguments: list[str]) -> int:
    """Have a script run; returns the exit status of torchrun."""
    option, nranks, *argv = arguments
    assert option == "--nproc-per-node", option
    request = {"nranks": int(nranks), "argv": argv, "folder": os.getcwd(), "env": dict(os.environ)}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deadline = time.monotonic() + _START
    while True:
        try:
            connection.connect(path)
            break
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline, "the server has not started"
            time.sleep(0.05)
    socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])
    answer = connection.recv(1)
    assert answer, "the server has ended"
    return answer[0]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
