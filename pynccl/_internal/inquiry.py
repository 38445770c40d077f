"""Which ranks are missing in an operation that is late: the ranks ask each other through a store.

A store is common to the processes, as torch.distributed's. The keys, below ``pynccl/``:

* ``questions``: how many there were; ``question/N``: the id of the communicator in question;
* ``answer/N/RANK``: the dump of the flight record of the process of that rank, shortened;
* ``joined/ID``: what the others call a communicator that has this id on the ranks that joined it.

One thread of a process looks for questions about all of its communicators with a store, twice a
second, and asks those of this process, which the monitor in C++ has for it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from pynccl import _C
from pynccl.store import Store, joined_key

if TYPE_CHECKING:
    from pynccl.flight.dump import Dump

__all__: list[str] = []

_PERIOD = 0.5  # seconds between two looks for questions
_PATIENCE = 0.7  # seconds to wait for the answers
_STEP = 0.02
_LAST_CALL = 1.0  # seconds that the end of the process waits for a call of a store
_FRESH = 2.0  # seconds in which the answers to a question serve another rank, too


class _Questions:
    """The questions of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = store.add("pynccl/questions", 0) + 1
        self._answered: dict[str, tuple[int, float]] = {}  # by communicator: question, time
        self._published: set[str] = set()
        self._process = os.urandom(16).hex()  # tells the dumps of processes apart

    def publish(self, comm: str, joined: str) -> None:
        """Tell the ranks that have joined a communicator how the others call it."""
        if joined not in self._published:
            self._store.set(joined_key(joined), comm)
            self._published.add(joined)

    def common(self, comm: str) -> str:
        """The id of a communicator on the ranks that did not join it."""
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
        """The number of a question about a communicator: a new one, or one just answered."""
        self.answer()
        number, since = self._answered.get(comm, (0, 0.0))
        if not number or time.monotonic() - since > _FRESH:
            number = self._store.add("pynccl/questions", 1)
            self._store.set(f"pynccl/question/{number}", comm)
            self.answer()
        return number

    def add_answers(self, number: int, known: dict[int, Dump], nranks: int) -> None:
        """Add the answers that have come, by rank."""
        from pynccl.flight.dump import parse

        for rank in range(nranks):
            key = f"pynccl/answer/{number}/{rank}"
            if rank not in known and self._store.check([key]):
                known[rank] = parse(self._store.get(key).decode(), key)


class _Open:
    """A question of this process that is not answered yet."""

    def __init__(self, inquiry: _C.Inquiry, questions: _Questions) -> None:
        self._inquiry = inquiry
        self._questions = questions
        self._until = time.monotonic() + _PATIENCE
        self._dumps: dict[int, Dump] = {}
        self._comm = questions.common(inquiry.comm)
        self._number = questions.ask(self._comm)

    def is_over(self) -> bool:
        """Answer, where the answers of all ranks are there or the time is over."""
        from pynccl.flight.missing import find_missing

        inquiry = self._inquiry
        self._questions.add_answers(self._number, self._dumps, inquiry.nranks)
        if len(self._dumps) < inquiry.nranks and time.monotonic() < self._until:
            return False
        processes = {dump.reason: dump for dump in self._dumps.values()}
        missing = find_missing(self._comm, inquiry.rank, inquiry.nranks, processes.values())
        inquiry.answer(missing.text, missing.ranks)
        return True

    def give_up(self) -> None:
        """Answer that nothing is known."""
        self._inquiry.answer("", None)


class _Watcher:
    """The thread, and the stores that it uses."""

    def __init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        """Forget everything: a child of fork() has neither the thread nor usable stores."""
        self._lock = threading.RLock()  # the end of an object may run any code
        self._calls = threading.Lock()  # held by the thread while it calls stores
        self._running = False
        self._clones: weakref.WeakKeyDictionary[Store, Store] = weakref.WeakKeyDictionary()
        # By id(); without questions where a store has failed.
        self._known: dict[int, tuple[Store, _Questions | None]] = {}

    def attach(self, store: Store) -> Store:
        """What to use for a new communicator's store: a client that nobody else uses.

        A client of torch's TCPStore makes one call at a time, and a call may wait for long.
        """
        clone = getattr(store, "clone", None)
        if clone is None:
            return store
        with self._lock:
            if store not in self._clones:
                self._clones[store] = clone()
            return self._clones[store]

    def start(self) -> None:
        """Run the thread while there are communicators with a store."""
        with self._lock:
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="pynccl-inquiry", daemon=True).start()

    def _run(self) -> None:
        _C.sleep_at_exit()
        import pynccl.flight.missing  # noqa: F401 - now, rather than when something is late

        waiting: list[_Open] = []
        while True:
            with self._calls:
                if not self._look():
                    return
            inquiry = _C.take_inquiry(_STEP if waiting else _PERIOD)
            with self._calls:
                if inquiry is not None:
                    self._look()
                    waiting += self._open(inquiry)
                waiting = [one for one in waiting if not _ends(one)]
            del inquiry

    def end(self) -> None:
        """Let the thread call no store any more: the interpreter ends.

        A store that does not answer in time keeps it in a call: see sleep_at_exit().
        """
        self._calls.acquire(timeout=_LAST_CALL)  # for good

    def _look(self) -> bool:
        """Answer what other ranks ask; False where this process has no store any more."""
        with self._lock:
            members: list[Any] = _C.members()
            stores = {id(store): store for store, *_ in members}
            if not stores:
                self._running = False
        self._known = {key: known for key, known in self._known.items() if key in stores}
        for key, store in stores.items():
            try:
                if key not in self._known:
                    self._known[key] = store, _Questions(store)
                if questions := self._known[key][1]:
                    for _, comm, joined, _ in members:
                        if joined is not None:
                            questions.publish(comm, joined)
                    questions.answer()
            except Exception:  # the process that kept the store has ended
                self._known[key] = store, None
        return bool(stores)

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


def _ends(one: _Open) -> bool:
    try:
        return one.is_over()
    except Exception:
        one.give_up()
        return True


_watcher = _Watcher()


def _compare(
    collectives: list[Any], messages: list[Any]
) -> tuple[int, str, list[int] | None] | None:
    from pynccl._internal.comparison import exchange  # few need it

    return exchange(collectives, messages)


_C.set_exchange(_compare)
_C.set_watcher(_watcher.attach, _watcher.start)
os.register_at_fork(after_in_child=_watcher.start_again)
atexit.register(_watcher.end)
