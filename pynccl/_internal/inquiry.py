"""Finds the ranks missing from an overdue operation: the ranks query each other through a store,
and NCCL's RAS service is asked on GPUs.

The store is shared by the processes, as torch.distributed's. Its keys, below ``pynccl/``:

* ``questions``: the number of questions so far; ``question/N``: the id of the communicator in
  question;
* ``answer/N/RANK``: the shortened flight record of that rank's process;
* ``joined/ID``: the id on the other ranks of a communicator that has this id on ranks that joined
  it.

One thread per process polls twice a second for questions about its communicators with a store, and
asks the questions that the C++ monitor passes to it. Another thread asks RAS, even if a call of a
store does not return. An answer of the store is preferred.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import socket
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from pynccl import _C
from pynccl.store import Store, joined_key

if TYPE_CHECKING:
    from pynccl.flight.dump import Dump

__all__: list[str] = []

_PERIOD = 0.5  # seconds between polls for questions
_PATIENCE = 1.7  # seconds to wait for the answers; ranks on a busy machine answer late
_STEP = 0.02
_LONGEST = 16 << 20  # bytes of a report of RAS
_LONG = 3600.0
_ADDRESS_BYTES = 128  # sockaddr_storage
_LAST_CALL = 1.0  # seconds to wait at exit for a call of a store
_RECENT = 8  # questions before the first poll that are answered
_FRESH = 2.0  # seconds during which the answers to a question are reused for another rank


class _Questions:
    """The questions of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The most recent ones may concern a communicator that this process has just created.
        self._next = max(1, store.add("pynccl/questions", 0) + 1 - _RECENT)
        self._answered: dict[str, tuple[int, float]] = {}  # by communicator: question, time
        self._published: set[str] = set()
        self._process = os.urandom(16).hex()  # identifies this process's dumps

    def publish(self, comm: str, joined: str) -> None:
        """Publish the id of a communicator for the ranks that joined it under another id."""
        if joined not in self._published:
            self._store.set(joined_key(joined), comm)
            self._published.add(joined)

    def common(self, comm: str) -> str:
        """Return the id of a communicator on the ranks that did not join it later."""
        key = joined_key(comm)
        return self._store.get(key).decode() if self._store.check([key]) else comm

    def answer(self) -> None:
        """Answer all questions about communicators of this process."""
        from pynccl.flight.missing import shortened

        while self._store.check([f"pynccl/question/{self._next}"]):
            number, self._next = self._next, self._next + 1
            asked = self._store.get(f"pynccl/question/{number}").decode()
            for _, comm, _, rank in _C.members():
                if rank >= 0 and asked in (comm, self.common(comm)):
                    dump = shortened(_C.flight_dump_json(self._process), comm)
                    self._store.set(f"pynccl/answer/{number}/{rank}", dump)
                    self._answered[asked] = number, time.monotonic()

    def ask(self, comm: str) -> int:
        """Return the number of a question about a communicator, new or recently answered."""
        self.answer()
        number, since = self._answered.get(comm, (0, 0.0))
        if not number or time.monotonic() - since > _FRESH:
            number = self._store.add("pynccl/questions", 1)
            self._store.set(f"pynccl/question/{number}", comm)
            self.answer()
        return number

    def add_answers(self, number: int, known: dict[int, Dump], nranks: int) -> None:
        """Add the answers received so far, by rank."""
        from pynccl.flight.dump import parse

        for rank in range(nranks):
            key = f"pynccl/answer/{number}/{rank}"
            if rank not in known and self._store.check([key]):
                known[rank] = parse(self._store.get(key).decode(), key)


def _connections(store: Store) -> set[int]:
    """Return the descriptors of this process's connections to the server of torch's TCPStore.

    A Python socket on a descriptor would make it non-blocking after socket.setdefaulttimeout(), and
    /proc/self/net/tcp may leave out a connection while others change.
    """
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    port = getattr(store, "port", None)
    if not port:
        return set()
    getpeername = ctypes.CDLL(None).getpeername
    address, found = (ctypes.c_uint8 * _ADDRESS_BYTES)(), set()
    for name in os.listdir("/proc/self/fd"):
        size = ctypes.c_uint32(_ADDRESS_BYTES)
        if getpeername(int(name), address, ctypes.byref(size)) != 0:
            continue  # it is not a connected socket, or has been closed
        is_internet = int.from_bytes(address[:2], sys.byteorder) in (
            socket.AF_INET,
            socket.AF_INET6,
        )
        if is_internet and int.from_bytes(address[2:4], "big") == port:
            found.add(int(name))
    return found


def _is_closed(connections: set[int]) -> bool:
    """Return whether the other side has closed one of these connections."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


class _Open:
    """A pending question of this process."""

    def __init__(self, inquiry: _C.Inquiry, questions: _Questions) -> None:
        self._inquiry = inquiry
        self._questions = questions
        self._until = time.monotonic() + _PATIENCE
        self._dumps: dict[int, Dump] = {}
        self._comm = questions.common(inquiry.comm)
        self._number = questions.ask(self._comm)

    def is_over(self) -> bool:
        """Return whether all ranks have answered or the time is up; answer the inquiry if so."""
        from pynccl.flight.missing import find_missing

        inquiry = self._inquiry
        self._questions.add_answers(self._number, self._dumps, inquiry.nranks)
        if len(self._dumps) < inquiry.nranks and time.monotonic() < self._until:
            inquiry.keep_waiting()
            return False
        processes = {dump.reason: dump for dump in self._dumps.values()}
        missing = find_missing(self._comm, inquiry.rank, inquiry.nranks, processes.values())
        inquiry.answer(missing.text, missing.ranks)
        return True

    def give_up(self) -> None:
        """Answer the inquiry without a result."""
        self._inquiry.answer("", None)


class _Watcher:
    """The polling thread and the stores that it uses."""

    def __init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        """Reset all state: a child of fork() has neither the thread nor usable stores."""
        self._lock = threading.RLock()  # reentrant: destroying an object may run arbitrary code
        self._calls = threading.Lock()  # held by the thread while it calls stores
        self._running = False
        self._asks_ras = False
        self._clones: weakref.WeakKeyDictionary[Store, Store] = weakref.WeakKeyDictionary()
        self._connections: weakref.WeakKeyDictionary[Store, set[int]] = weakref.WeakKeyDictionary()
        # By id(); None in place of the questions of a failed store.
        self._known: dict[int, tuple[Store, _Questions | None]] = {}

    def attach(self, store: Store) -> Store:
        """Return the store for a new communicator to use: a client of its own.

        A client of torch's TCPStore makes one call at a time, and a call may block for long.
        """
        clone = getattr(store, "clone", None)
        if clone is None:
            return store
        with self._lock:
            if store not in self._clones:
                before = _connections(store)
                self._clones[store] = own = clone()
                if connections := _connections(own) - before:
                    self._connections[own] = connections
            return self._clones[store]

    def start(self, store: bool, ras: bool) -> None:
        """Run the thread while there are communicators with a store, and that for RAS."""
        with self._lock:
            if store and not self._running:
                self._running = True
                threading.Thread(target=self._run, name="pynccl-inquiry", daemon=True).start()
            if ras and not self._asks_ras:
                self._asks_ras = True
                threading.Thread(target=_ask_ras, name="pynccl-inquiry-ras", daemon=True).start()

    def _run(self) -> None:
        _C.sleep_at_exit()
        import pynccl.flight.missing  # noqa: F401 - now, rather than when an operation is overdue

        waiting: list[_Open] = []
        running = True
        while running:
            # Before the first poll as well: in a short program, the rank that hosts the store may
            # already have ended.
            inquiry = _C.take_inquiry(_STEP if waiting else _PERIOD)
            with self._calls:
                running = self._look()
                if inquiry is not None:
                    waiting += self._open(inquiry)
                waiting = [one for one in waiting if not _ends(one)]
            del inquiry

    def end(self) -> None:
        """Stop the thread from calling stores, as the interpreter ends.

        If a store does not answer in time, the thread stays in the call: see sleep_at_exit().
        """
        self._calls.acquire(timeout=_LAST_CALL)  # never released

    def _look(self) -> bool:
        """Answer the questions of other ranks; False if this process has no stores left."""
        with self._lock:
            members: list[Any] = _C.members()
            stores = {id(store): store for store, *_ in members}
            if not stores:
                self._running = False
        self._known = {key: known for key, known in self._known.items() if key in stores}
        for key, store in stores.items():
            try:
                if self._is_gone(store):
                    self._known[key] = store, None
                elif key not in self._known:
                    self._known[key] = store, _Questions(store)
                if questions := self._known[key][1]:
                    for _, comm, joined, _ in members:
                        if joined is not None:
                            questions.publish(comm, joined)
                    questions.answer()
            except Exception:  # the process that hosts the store has ended
                self._known[key] = store, None
        return bool(stores)

    def _is_gone(self, store: Store) -> bool:
        """Return whether the server of torch's TCPStore has ended.

        The store prints a C++ backtrace if it is called afterwards.
        """
        with self._lock:
            owned = [fds for one, fds in self._connections.items() if one is store]
        return any(map(_is_closed, owned))

    def _open(self, inquiry: _C.Inquiry) -> list[_Open]:
        store = inquiry.store
        questions = self._known.get(id(store), (store, None))[1]
        if questions is not None:
            try:
                return [_Open(inquiry, questions)]
            except Exception:
                self._known[id(store)] = store, None
        inquiry.answer("", None)
        return []


def _ask_ras() -> None:
    _C.sleep_at_exit()
    from pynccl.flight.missing import Missing  # now, rather than when an operation is overdue
    from pynccl.flight.ras import Query

    while True:
        if (inquiry := _C.take_inquiry(_LONG, ras=True)) is not None:
            counted = inquiry.what.split(maxsplit=1)[0] not in ("send", "recv")
            try:
                report = Query(seconds=_PATIENCE, longest=_LONGEST).result()
                missing = report.missing(inquiry.rank, inquiry.nranks, counted=counted)
            except RuntimeError as error:  # also without new threads, as the interpreter ends
                missing = Missing(str(error), None)
            inquiry.answer(missing.text, missing.ranks)
        del inquiry


def _ends(one: _Open) -> bool:
    try:
        return one.is_over()
    except Exception:
        one.give_up()
        return True


watcher = _Watcher()


os.register_at_fork(after_in_child=watcher.start_again)
atexit.register(watcher.end)
