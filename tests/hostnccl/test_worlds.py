"""Proves that ranks with different arguments are rejected with the reason, on every rank: a wrong
size, a duplicate rank, a wrong id, an id from another machine; and that an incomplete communicator
ends at its deadline.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import os
import re
import signal
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support.blocking import in_threads, wait_until
from tests.support.cpp import compile_to_preload
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@pytest.mark.parametrize("threads", [False, True])
def test_a_wrong_nranks_is_refused_by_every_rank(launch: Launcher, threads: bool) -> None:
    for text in launch(2, _size_of_rank, threads=threads):
        assert re.search(r"rank 0 \(pid \d+\) passes 2", text)
        assert re.search(r"rank 1 \(pid \d+\) passes 3", text)


def _size_of_rank(rank: Rank) -> str:
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about nranks") as caught:
        nccl.Communicator(2 + rank.rank, rank.unique_ids[0], rank.rank, provider="host")
    return str(caught.value)


def _twice(rank: Rank) -> tuple[int, str]:
    with pytest.raises(nccl.NcclInvalidUsageError, match="rank 1 is used twice") as caught:
        nccl.Communicator(4, rank.unique_ids[0], max(rank.rank, 1), provider="host")
    return os.getpid(), str(caught.value)


@pytest.mark.parametrize("threads", [False, True])
def test_a_rank_used_twice_is_refused_by_every_rank(launch: Launcher, threads: bool) -> None:
    outcomes = launch(3, _twice, threads=threads)
    same = {outcomes[0][0], outcomes[1][0]}  # the processes that pass rank 1
    for _, text in outcomes:
        assert {int(pid) for pid in re.findall(r"by pid (\d+)", text)} == same


def _used_again(rank: Rank) -> None:
    with rank.communicator() as comm:
        comm.all_reduce(np.ones(3))
        with pytest.raises(nccl.NcclInvalidUsageError, match="has already created a communicator"):
            rank.communicator()
        comm.all_reduce(np.ones(3))


@pytest.mark.parametrize("strict", ["0", "1"])
def test_an_id_creates_one_world(launch: Launcher, strict: str) -> None:
    launch(2, _used_again, env={"HOSTNCCL_STRICT": strict})


_ID = struct.Struct("8sIIQ16s")  # of hostnccl: magic, format, reserved, machine, name


@pytest.mark.parametrize(
    ("offset", "reason"),
    [(0, "not created by hostnccl"), (8, "has format"), (16, "comes from another machine")],
)
def test_an_id_from_elsewhere_is_refused(offset: int, reason: str) -> None:
    """Raised without waiting for other ranks."""
    data = bytearray(bytes(nccl.get_unique_id("host")))
    data[offset] ^= 1
    assert offset < _ID.size
    started = time.monotonic()
    with pytest.raises(nccl.NcclInvalidArgumentError, match=reason):
        nccl.Communicator(2, bytes(data), 0, provider="host")
    assert time.monotonic() - started < 15  # the deadline is 300 s


def _socket_name(unique_id: bytes) -> bytes:
    """The abstract name at which the ranks of an id find each other."""
    key = _ID.unpack_from(unique_id)[4]
    return b"\0hostnccl-" + hmac.digest(key, b"socket", "sha256")[:16].hex().encode()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(20)
    return made


def _polled(unique_id: bytes, rank: int) -> nccl.Communicator:
    config = nccl.Config(blocking=False)
    return nccl.Communicator(2, unique_id, rank, config=config, provider="host")


def test_a_host_without_the_id_is_refused() -> None:
    """A process can see the name and bind it, but not prove that it knows the id."""
    unique_id = bytes(nccl.get_unique_id("host"))
    with _socket() as impostor:
        impostor.bind(_socket_name(unique_id))
        impostor.listen()
        comm = _polled(unique_id, 0)
        connection, _ = impostor.accept()
        with connection:
            connection.settimeout(20)
            nonce_size, proof_size = 16, 32
            assert len(connection.recv(4096)) == 8 + nonce_size  # Hello
            connection.send(b"nccl\x02\0\0\0" + bytes(nonce_size + proof_size))  # Challenge
            assert connection.recv(4096) == b""
    reason = f"hosted by pid {os.getpid()}, which does not know the unique id"
    with pytest.raises(nccl.NcclInvalidUsageError, match=reason):
        comm.wait_ready(20)
    comm.abort()


def test_idle_connections_do_not_prevent_a_rendezvous() -> None:
    unique_id = bytes(nccl.get_unique_id("host"))
    first = _polled(unique_id, 0)
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + 20
        for _ in range(200):  # more than the host keeps
            idle = stack.enter_context(_socket())
            while idle.connect_ex(_socket_name(unique_id)) != 0:  # until it listens
                assert time.monotonic() < deadline
                time.sleep(0.001)
        second = _polled(unique_id, 1)
        for comm in (first, second):
            comm.wait_ready(20)
    for comm in (first, second):
        comm.abort()


_ROUNDS, _TRIES = 10, 21


@on_ranks(3, ids=1 + _ROUNDS * _TRIES)
def test_ranks_notice_a_late_one_immediately(rank: Rank) -> None:
    """Its messages wake them, before their next look at the processes, every 50 ms. On a busy
    machine, one of the rounds shows it.
    """
    buffer = rank.comm.mem_alloc(1 << 12)
    creates: list[Callable[[int], nccl.Communicator | nccl.Window]] = [
        rank.communicator,
        lambda _: rank.comm.register_window(buffer),
    ]
    immediately = np.zeros(1, np.int32)
    for create in creates:
        for first in range(1, _ROUNDS * _TRIES, _TRIES):
            times = []
            for number in range(first, first + _TRIES):
                rank.comm.barrier()
                if rank.rank == 2:
                    time.sleep(0.01)
                began = time.monotonic()
                created = create(number)
                times.append(time.monotonic() - began)
                created.close()
            immediately[0] = statistics.quantiles(times)[2] < 0.025
            rank.comm.broadcast(immediately, 2)
            if immediately[0]:
                break
        assert immediately[0], times


def _meet(rank: Rank) -> float:
    """The arriving ranks start at once; return the time."""
    rank.set_event("meets")
    rank.wait_event("meets", 0, 2)
    return time.monotonic()


@pytest.mark.parametrize("nranks", [4, 17, 18])
def test_missing_ranks_are_listed_up_to_a_limit(nranks: int) -> None:
    config = nccl.Config(init_timeout=0.05)
    with pytest.raises(nccl.NcclTimeoutError, match="; missing: ") as caught:
        nccl.Communicator(nranks, nccl.get_unique_id("host"), 0, config=config, provider="host")
    listed = str(caught.value).partition("; missing: ")[2]
    expected = ", ".join(map(str, range(1, min(nranks, 17)))) + (", ..." if nranks > 17 else "")
    assert re.match(rf"{re.escape(expected)}(?!, )", listed), listed


def _incomplete_by_environment(rank: Rank) -> tuple[str, float]:
    if rank.rank % 2 == 1:
        return "", 0.0
    started = _meet(rank)
    with pytest.raises(nccl.NcclTimeoutError, match="2 of 4 ranks joined") as caught:
        rank.communicator()
    return str(caught.value), time.monotonic() - started


@on_ranks(1, ids=1)
def test_an_operation_before_all_ranks_have_joined_is_refused(rank: Rank) -> None:
    comm = nccl.Communicator(
        2, rank.unique_ids[0], 0, provider="host", config=nccl.Config(blocking=False)
    )
    x = np.ones(1, np.float32)
    lib = raw.load("host")
    with pytest.raises(nccl.NcclInvalidArgumentError, match="comm is not initialized yet"):
        lib.ncclAllReduce(
            x.ctypes.data, x.ctypes.data, 1, raw.ncclFloat32, raw.ncclSum, comm.handle, 0
        )
    comm.abort()


def test_an_incomplete_world_ends_at_the_deadline_of_the_environment(launch: Launcher) -> None:
    env = {"HOSTNCCL_INIT_TIMEOUT": "3"}
    outcomes = launch(4, _incomplete_by_environment, env=env)
    for rank in (0, 2):
        text, took = outcomes[rank]
        assert 2.9 < took < 25
        assert "within 3 s" in text
        assert "missing: 1, 3" in text


def _invalid(rank: Rank, setting: str) -> None:
    with pytest.raises(nccl.NcclInvalidArgumentError, match=f"{setting}=soon"):
        rank.communicator()


@pytest.mark.parametrize("setting", ["HOSTNCCL_INIT_TIMEOUT", "HOSTNCCL_CONNECT"])
def test_an_invalid_setting_is_rejected(launch: Launcher, setting: str) -> None:
    """Even HOSTNCCL_CONNECT, which only strict mode uses."""
    launch(2, _invalid, setting, env={"HOSTNCCL_STRICT": "0", setting: "soon"})


@on_ranks(2)
def test_a_forked_child_gets_an_error(rank: Rank) -> None:
    """In a forked child, the error says that the communicator belongs to its parent."""
    comm = rank.comm
    comm.all_reduce(np.ones(3))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            comm.all_reduce(np.ones(3))
            os.write(writing, b"no error")
        except BaseException as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    assert "fork" in text
    comm.all_reduce(np.ones(3))


def _sockets() -> set[str]:
    """The open sockets of this process."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(entry.path))
    return {target for target in found if target.startswith("socket:")}


def _incomplete(rank: Rank, nranks: int) -> nccl.Communicator:
    config = nccl.Config(blocking=False)
    return nccl.Communicator(nranks, rank.unique_ids[0], rank.rank, config=config, provider="host")


@on_ranks(2)
def test_a_forked_child_does_not_keep_the_name_of_a_rendezvous(rank: Rank) -> None:
    """Rank 0 forks while it hosts a rendezvous, which it gives up. The child lives on."""
    reading, writing = os.pipe()
    if rank.rank == 0:
        before = _sockets()
        comm = _incomplete(rank, 2)
        wait_until(lambda: _sockets() > before)
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        comm.abort()
        rank.set_event("aborted")
    else:
        rank.wait_event("aborted", 0)
    with rank.communicator() as comm:
        comm.all_reduce(np.ones(3))
    os.close(writing)
    os.close(reading)
    if rank.rank == 0:
        os.wait()


@on_ranks(2)
def test_a_forked_child_has_no_socket(rank: Rank) -> None:
    """Of a host, a joiner, and a root that refuses the new ranks of a communicator."""
    before = _sockets()
    with nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host") as root:
        root.get_unique_id()
    wait_until(lambda: len(_sockets() - before) == 1)
    if rank.rank == 1:
        rank.wait_event("listens", 0)
    comm = _incomplete(rank, 3)
    wait_until(lambda: len(_sockets() - before) == 2)
    rank.set_event("listens")
    wait_until(lambda: len(_sockets() - before) == 3 - rank.rank)  # rank 0 accepts rank 1
    child = os.fork()
    if child == 0:
        os._exit(len(_sockets() - before))
    assert os.waitpid(child, 0)[1] == 0
    comm.abort()


_BLOCKING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// Whether the next call blocks: that maps shared memory, or opens the file of measurements.
volatile int in_mmap, in_open;
volatile int blocked, goes_on;

static void block(volatile int* in) {
  if (!*in) return;
  *in = 0;
  blocked = 1;
  while (!goes_on) usleep(1000);
}

void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  static void* (*function)(void*, size_t, int, int, int, off_t);
  if (!function) function = dlsym(RTLD_NEXT, "mmap");
  if (flags & MAP_SHARED) block(&in_mmap);
  return function(address, size, protection, flags, fd, offset);
}

int open(const char* path, int flags, ...) {
  if (strstr(path, "hostnccl-tuning")) block(&in_open);
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0666);
}
"""


def _create_in_threads(unique_id: bytes) -> None:
    def create(number: int) -> None:
        with nccl.Communicator(2, unique_id, number, provider="host") as comm:
            comm.all_reduce(np.ones(3))

    in_threads(partial(create, 0), partial(create, 1))


def _fork_during_a_creation(rank: Rank, library: str, call: str) -> None:
    nccl.get_unique_id("host")  # loads the library
    preloaded = ctypes.CDLL(library)
    ctypes.c_int.in_dll(preloaded, f"in_{call}").value = 1
    first = threading.Thread(target=_create_in_threads, args=rank.unique_ids[:1])
    first.start()
    wait_until(lambda: ctypes.c_int.in_dll(preloaded, "blocked").value)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with contextlib.suppress(BaseException):
            _create_in_threads(rank.unique_ids[1])
            os._exit(0)
        os._exit(1)
    ctypes.c_int.in_dll(preloaded, "goes_on").value = 1
    first.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("call", ["mmap", "open"])
def test_a_child_forked_during_a_creation_creates_its_own(
    launch: Launcher, tmp_path: Path, call: str
) -> None:
    """The thread that it does not have owned a lock."""
    library = str(compile_to_preload(tmp_path, "blocking", _BLOCKING))
    env = {
        "LD_PRELOAD": library,
        "HOSTNCCL_TUNING": "on",
        "HOSTNCCL_TUNING_FILE": str(tmp_path / "hostnccl-tuning"),
    }
    launch(1, _fork_during_a_creation, library, call, env=env, fresh=True, ids=2, timeout=60)
