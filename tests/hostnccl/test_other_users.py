"""Proves that other users of the machine can neither read the memory of a world nor prevent its
creation: by floods of connections, late connections, names bound in advance, unsolicited
descriptors, and user namespaces in which user ids are unknown.

Runs as root, which can become another user.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import hashlib
import os
import re
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pynccl import nccl
from tests.support.launcher import Launcher
from tests.support.rank import Rank

# Serial: its strangers connect to the sockets of all ranks of the machine.
pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user"),
]

_STRANGER = 12345
_LIFE = 60  # seconds, after which a stranger exits in any case
_CLONE_NEWUSER = 0x10000000


def _names() -> list[bytes]:
    """The abstract names of hostnccl's sockets, visible to all users of the machine."""
    with open("/proc/net/unix") as sockets:
        return [b"\0" + name.encode() for name in re.findall(r"@(hostnccl-\w+)", sockets.read())]


def _connect(name: bytes) -> socket.socket | None:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.settimeout(1)
    try:
        stranger.connect(name)
    except OSError:
        stranger.close()
        return None
    return stranger


def _become(uid: int) -> None:
    """Give this child process another user's identity, and a limited lifetime."""
    signal.alarm(_LIFE)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


@contextlib.contextmanager
def _stranger(act: Callable[[], object], uid: int = _STRANGER) -> Iterator[None]:
    """A user's process that calls a function repeatedly."""
    child = os.fork()
    if child == 0:
        try:
            _become(uid)
            while True:
                act()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


_held: list[socket.socket] = []


def _flood() -> None:
    """Connect as fast as possible."""
    for name in _names():
        for _ in range(500):
            if connection := _connect(name):
                connection.close()


def _hold() -> None:
    """Connect, send nothing, and keep the connections open."""
    for name in _names():
        if len(_held) < 800 and (connection := _connect(name)):
            _held.append(connection)
    time.sleep(0.001)


def _meet_late(rank: Rank) -> float:
    if rank.rank == 2:
        time.sleep(0.5)
    started = time.monotonic()
    with rank.communicator() as comm:
        x = np.ones(3)
        comm.all_reduce(x)
        assert (x == 3).all()
    return time.monotonic() - started


@pytest.mark.parametrize(
    ("act", "uid"),
    [(_flood, _STRANGER), (_hold, _STRANGER), (_hold, 0)],
    ids=["flood", "hold", "hold as root"],
)
def test_a_flood_does_not_prevent_a_rendezvous(
    launch: Launcher, act: Callable[[], object], uid: int
) -> None:
    """Connections of the same user without a proof may come from a foreign user namespace."""
    with _stranger(act, uid), _stranger(act, uid):
        times = launch(3, _meet_late, timeout=40, env={"HOSTNCCL_INIT_TIMEOUT": "25"})
    assert max(times) < 20


def _never_complete(rank: Rank) -> float:
    if rank.rank == 2:
        return 0
    started = time.monotonic()
    with pytest.raises(nccl.NcclTimeoutError):
        rank.communicator()
    return time.monotonic() - started


def test_a_flood_does_not_move_the_deadline(launch: Launcher) -> None:
    with _stranger(_flood), _stranger(_flood):
        times = launch(3, _never_complete, timeout=40, env={"HOSTNCCL_INIT_TIMEOUT": "1"})
    assert max(times) < 25


def _disagree(rank: Rank) -> list[bytes]:
    """The host of a failed rendezvous still answers: test the answer to strangers."""
    before = set(_names())
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about nranks"):
        nccl.Communicator(2 + rank.rank, rank.unique_ids[0], rank.rank, provider="host")
    if rank.rank:
        time.sleep(3)  # the host may be either
    names = set(_names()) - before
    answers = []
    for uid in (_STRANGER, 0):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _become(uid)
            for name in names:
                if connection := _connect(name):
                    with contextlib.suppress(OSError):
                        os.write(writing, connection.recv(4096))
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            answers.append(pipe.read())
        os.waitpid(child, 0)
    return answers


def test_strangers_get_no_late_answer(launch: Launcher) -> None:
    for answers in launch(2, _disagree, fresh=True, timeout=30):
        assert answers == [b"", b""]


def _disagree_without_descriptors(rank: Rank) -> None:
    """The thread that answers late ranks has no descriptor for them."""
    before = set(_names())
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about nranks"):
        nccl.Communicator(2 + rank.rank, rank.unique_ids[0], rank.rank, provider="host")
    names = set(_names()) - before
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))
    opened = []
    connections = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in names]
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    for connection, name in zip(connections, names, strict=True):
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.connect(name)
    time.sleep(1.5)  # std::terminate would end the process
    for file in opened:
        os.close(file)


def test_a_late_rank_does_not_end_a_process_without_descriptors(launch: Launcher) -> None:
    outcomes = launch.outcomes(2, _disagree_without_descriptors, timeout=30)
    assert all(outcome.ok for outcome in outcomes), outcomes


def _bind_derived() -> None:
    """Bind the name that a shrink would have if it were derived from public data."""
    for name in _names():
        public = bytes.fromhex(name.rpartition(b"-")[2].decode())
        for words in ("shrink 0 2", "shrink 0 0", "shrink 0 1"):
            digest = hashlib.sha256(public + words.encode()).digest()[:16]
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with contextlib.suppress(OSError):
                stranger.bind(b"\0hostnccl-" + digest.hex().encode())
                stranger.listen()
                _held.append(stranger)


def _shrink(rank: Rank) -> int:
    if rank.rank:
        time.sleep(0.5)  # the name is visible meanwhile
    comm = rank.communicator()
    comm.all_reduce(np.ones(1))
    if rank.rank == 2:
        comm.abort()
        return 0
    child = comm.shrink([2], abort=True)
    child.all_reduce(np.ones(1))
    child.close()
    comm.abort()
    return child.nranks if not child.closed else 2


def test_a_name_cannot_be_bound_first(launch: Launcher) -> None:
    with _stranger(_bind_derived):
        assert launch(3, _shrink, timeout=40)[:2] == [2, 2]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _inject() -> None:
    """Send unsolicited descriptors, through each kind of socket."""
    passed = array.array("i", [0] * 200)
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
    for name in _names():
        for kind in (socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            sender = socket.socket(socket.AF_UNIX, kind)
            sender.setblocking(False)
            with contextlib.suppress(OSError):
                sender.connect(name)
                sender.sendmsg([bytes(24)], control)
                sender.sendmsg([bytes(36)], control)
            _held.append(sender)
            if len(_held) > 50:
                _held.pop(0).close()


def _register(rank: Rank) -> None:
    comm = rank.comm
    buffer = comm.mem_alloc(1 << 12)
    comm.register_window(buffer).close()
    before = _descriptors()
    for number in range(6):
        if number % 2 == rank.rank:
            time.sleep(0.1)
        comm.register_window(buffer).close()
    assert _descriptors() <= before


@pytest.mark.parametrize("uid", [_STRANGER, 0])
def test_descriptors_of_strangers_are_closed(launch: Launcher, uid: int) -> None:
    with _stranger(_inject, uid):
        launch(2, _register, timeout=40)


def _rank_in_namespace(rank: int, unique_id: bytes, result: int) -> None:
    if rank:
        time.sleep(2)
    comm = nccl.Communicator(2, unique_id, rank, provider="host")
    x = np.ones(1)
    comm.all_reduce(x)
    os.write(result, b"%d" % x[0])


def _steal() -> bytes:
    """Request the host's memory as rank 1; return the data received with a descriptor."""
    for name in _names():
        requests = (
            b"hostnccl" + (3).to_bytes(4, "little") + (2).to_bytes(4, "little") + bytes(56),
            b"nccl\x01\0\0\0" + bytes(16),  # Hello
        )
        for request in requests:
            connection = _connect(name)
            if connection is None:
                continue
            with contextlib.suppress(OSError):
                connection.send(request)
                for _ in range(3):
                    data, control, _, _ = connection.recvmsg(4096, 1024)
                    if control:
                        return data
                    if not data:
                        break
                    # The answer derived from the public name.
                    connection.send(b"nccl\x03\0\0\0" + hashlib.sha256(name).digest())
                    body = (2).to_bytes(4, "little") + (1).to_bytes(4, "little")
                    body += os.getpid().to_bytes(8, "little") + bytes(40)
                    connection.send(b"nccl\x04\0\0\0" + body)
            connection.close()
    return b""


def _in_namespace(unique_id: bytes, result: int) -> None:
    """Two ranks in a user namespace without users: all users have the id 65534."""
    os.setsid()
    signal.alarm(_LIFE)
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER) != 0:
        os.write(result, b"-")
        return
    assert os.geteuid() == 65534
    second = os.fork()
    _rank_in_namespace(0 if second else 1, unique_id, result)
    if second:
        os.waitpid(second, 0)


def test_other_users_get_no_memory_in_a_user_namespace() -> None:
    unique_id = bytes(nccl.get_unique_id("host"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _in_namespace(unique_id, writing)
        finally:
            os._exit(0)
    os.close(writing)
    stolen, stealing = os.pipe()
    parent, thief = os.getpid(), os.fork()
    if thief == 0:
        try:
            _become(_STRANGER)
            while os.getppid() == parent:
                time.sleep(0.001)
                if loot := _steal():
                    os.write(stealing, loot)
                    break
        finally:
            os._exit(0)
    os.close(stealing)
    with open(reading, "rb") as pipe, open(stolen, "rb") as haul:
        answers = pipe.read()  # until both ranks have ended
        os.kill(thief, signal.SIGKILL)
        taken = haul.read()
    os.waitpid(child, 0)
    os.waitpid(thief, 0)
    if answers == b"-":
        pytest.skip("this kernel forbids user namespaces")
    assert taken == b""
    assert answers == b"22"
