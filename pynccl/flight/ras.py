"""A client of NCCL's RAS service, and the ranks that are missing according to it.

Since NCCL 2.24, a thread of each process exchanges the state of all communicators with the other
processes, and answers clients on port 28028 of localhost, or at NCCL_RAS_ADDR. Client and service
exchange lines of text. The state is JSON since 2.28.7.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from dataclasses import dataclass, field

from pynccl._internal import sockets
from pynccl._internal.typed_json import build
from pynccl.flight.merged import ranks_text
from pynccl.flight.missing import Missing

__all__ = ["Communicator", "Query", "Rank", "RasError", "Report", "Status", "parse"]

_SECONDS = 2.0  # of a query
_GREETING = 0.5  # seconds to wait for a connection, and for the first line
_LONGEST_LINE = 4096  # bytes
_LONGEST_REPORT = 64 << 20  # bytes
_MOST_RANKS = 1 << 20  # of all communicators
_MOST_COUNTERS = 64  # names
_MOST_COUNTS = 3  # values of a counter in a text
_GONE = ("dead", "unreachable", "not in the communicator", "aborted", "finalized")


class RasError(RuntimeError):
    """The service does not answer, or its answer is invalid."""


@dataclass(frozen=True)
class Status:
    """The state of a rank as NCCL reports it: two ``ncclResult_t``, which calls have ended the
    communicator, and for missing ranks whether their process is silent or dead.
    """

    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


@dataclass(frozen=True)
class Rank:
    """A rank of a communicator.

    Attributes:
        rank: the rank.
        host: the address of its machine.
        pid: its process; -1 if unknown.
        cuda_dev: its GPU.
        status: its state.
        collective_counts: the collectives launched, by name. NCCL does not count sends, receives
            and what is captured in graphs.
    """

    rank: int
    host: str
    pid: int
    cuda_dev: int
    status: Status
    collective_counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Communicator:
    """A communicator of the job.

    Attributes:
        hash: NCCL's hash of its id.
        size: the number of ranks.
        ranks: the ranks that reported.
        missing_ranks: the other ranks.
    """

    hash: str
    size: int
    ranks: list[Rank]
    missing_ranks: list[Rank]

    def states(self) -> dict[int, str]:
        """Return the state of every rank: "running", "initializing", "dead", "aborted" ..."""
        states = dict.fromkeys(range(self.size), "not reported")
        for one in self.missing_ranks:
            dead, silent = one.status.considered_dead, one.status.unresponsive
            states[one.rank] = _GONE[0 if dead else 1 if silent else 2]
        for one in self.ranks:
            states[one.rank] = _state(one.status)
        return states

    def missing(self, rank: int | None = None, *, counted: bool = True) -> Missing:
        """Find the missing ranks.

        These are the ranks whose processes are gone, and those that have launched the fewest
        collectives.

        Args:
            rank: the rank that waits for them; None if it is unknown.
            counted: whether NCCL counts the operation in which it waits.
        """
        states = self.states()
        texts, found = [], set[int]()
        gone = _GONE if "running" in states.values() else _GONE[:3]
        for state in (*gone, "not reported"):
            if ranks := {one for one, is_ in states.items() if is_ == state}:
                texts.append(f"missing {ranks_text(ranks)} (RAS): {state}")
                found |= ranks
        if counted and (counts := self._counts_text(found)):
            launched = {
                one.rank: sum(one.collective_counts.values())
                for one in self.ranks
                if one.rank not in found
            }
            least = min(launched.values())
            behind = {one for one, number in launched.items() if number == least}
            if len(behind) == len(launched):
                texts.append(f"the ranks have launched different collectives (RAS): {counts}")
            elif rank in behind:
                texts.append(f"no rank is behind rank {rank} (RAS): {counts}")
            else:
                texts.append(f"missing {ranks_text(behind)} (RAS): {counts}")
                found |= behind
        return Missing("; ".join(texts), sorted(found) or None)

    def _counts_text(self, without: set[int]) -> str:
        """Describe the counters that differ."""
        ranks = [one for one in self.ranks if one.rank not in without]
        parts = []
        for name in sorted({name for one in ranks for name in one.collective_counts}):
            by_count: dict[int, list[int]] = {}
            for one in ranks:
                by_count.setdefault(one.collective_counts.get(name, 0), []).append(one.rank)
            shown = sorted(by_count.items())[:_MOST_COUNTS]
            if len(by_count) > 1:
                more = ["..."] if len(by_count) > len(shown) else []
                values = [f"{count} on {ranks_text(where)}" for count, where in shown] + more
                parts.append(f"{name} {', '.join(values)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Report:
    """The communicators of a job.

    Attributes:
        nccl_version: the version of the NCCL that answered.
        timestamp: the local time of the answer.
        communicators: all communicators.
    """

    nccl_version: str
    timestamp: str
    communicators: list[Communicator]

    def missing(self, rank: int, nranks: int, *, counted: bool) -> Missing:
        """Find the ranks that an overdue operation of this process waits for.

        Args:
            rank: the rank of this process in the communicator.
            nranks: the number of ranks of the communicator.
            counted: whether NCCL counts the operation.
        """
        pid = os.getpid()
        own = [
            one
            for one in self.communicators
            if one.size == nranks and any((r.rank, r.pid) == (rank, pid) for r in one.ranks)
        ]
        found = [missing for one in own if (missing := one.missing(rank, counted=counted)).text]
        if not own:
            return Missing("RAS does not list the communicator", None)
        if not found:
            return Missing("RAS sees no difference", None)
        if len(found) > 1:
            return Missing(
                f"RAS sees differences in {len(found)} communicators of {nranks} ranks: see "
                "pynccl ras",
                None,
            )
        return found[0]


def _state(status: Status) -> str:
    if status.abort_flag:
        return "aborted"
    if status.finalize_called or status.destroy_flag:
        return "finalized"
    error = next((e for e in (status.init_state, status.async_error) if e not in (0, 7)), None)
    if error is not None:
        return f"error {error}"
    return "running" if status.init_state == 0 else "initializing"


def parse(data: bytes) -> Report:
    """Parse the JSON of the service.

    Raises:
        RasError: it is invalid.
    """
    if not data:
        raise RasError("it closed the connection without a report")
    try:
        text = data.decode()
        # NCCL 2.28 omits the comma between these members of a missing rank.
        text = re.sub(r'("nvml_dev": -?\d+)(\s+"status")', r"\1,\2", text)
        report = build(Report, json.loads(text))
        _check(report)
    except (ValueError, RecursionError) as error:
        raise RasError(f"its report is invalid: {error}") from None
    return report


def _check(report: Report) -> None:
    texts = [report.nccl_version, report.timestamp]
    counters = set[str]()
    left = _MOST_RANKS
    for one in report.communicators:
        listed = [*one.ranks, *one.missing_ranks]
        ranks = [rank.rank for rank in listed]
        texts += [one.hash, *(rank.host for rank in listed)]
        counters.update(*(rank.collective_counts for rank in listed))
        if not 0 < one.size <= left:
            raise ValueError(f"a communicator of {one.size} ranks")
        left -= one.size
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(one.size)):
            raise ValueError(f"ranks that are not in a communicator of {one.size}, or twice")
        if any(count < 0 for rank in listed for count in rank.collective_counts.values()):
            raise ValueError("a counter is negative")
    if len(counters) > _MOST_COUNTERS:
        raise ValueError(f"{len(counters)} counters")
    for text in [*texts, *counters]:
        if len(text) > 255 or not text.isprintable():
            raise ValueError(f"{text[:40]!r} is not a name")


class Query:
    """A query of the service, in a thread because name resolution has no time limit."""

    def __init__(
        self,
        address: str | None = None,
        seconds: float = _SECONDS,
        longest: int = _LONGEST_REPORT,
    ) -> None:
        """Start the query.

        Args:
            address: "host:port"; None for that of NCCL_RAS_ADDR, or localhost:28028.
            seconds: the time limit.
            longest: the bytes of the longest report. Parsing one keeps the global interpreter lock.
        """
        self.address = address or os.environ.get("NCCL_RAS_ADDR") or "localhost:28028"
        self._until = time.monotonic() + seconds
        self._longest = longest
        self._outcome: Report | str = f"no answer within {seconds:g} s"
        self._thread = threading.Thread(target=self._run, name="pynccl-ras", daemon=True)
        self._thread.start()

    def result(self) -> Report:
        """Wait for the answer.

        Raises:
            RasError: there is none in time, or it is invalid.
        """
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if isinstance(self._outcome, str):
            raise RasError(f"RAS at {self.address}: {self._outcome}")
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = parse(self._ask())
        except TimeoutError:
            pass
        except OSError as error:
            self._outcome = error.strerror or str(error)
        except (RasError, ValueError) as error:  # ValueError: of the host's name
            self._outcome = str(error)

    def _ask(self) -> bytes:
        found = re.fullmatch(r"(?:\[(.+)\]|([^:\[\]]+)):(\d{1,5})", self.address)
        if found is None or int(found[3]) > 65535:
            raise RasError("the address is not host:port")
        host, port = found[1] or found[2], int(found[3])
        while True:
            try:
                with sockets.connect(host, port, self._attempt) as sock:
                    session = _Session(sock, time.monotonic() + self._attempt())
                    greeting = session.request("CLIENT PROTOCOL 2")
                    session.until = self._until
                    return _state_of_job(session, greeting, self._longest)
            except TimeoutError:
                # All processes of a machine listen at one port. This one may be stopped.
                _left(self._until)

    def _attempt(self) -> float:
        """The seconds for one address: another one may answer."""
        return min(_left(self._until), _GREETING)


def _left(until: float) -> float:
    """Return the seconds until a time, or raise TimeoutError."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Session:
    """The lines of a connection."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._socket = sock
        self.until = until
        self._received = b""

    def send(self, line: str) -> None:
        self._socket.settimeout(_left(self.until))
        self._socket.sendall(f"{line}\n".encode())

    def request(self, line: str) -> str:
        """Send a line and return the answer, also a line."""
        self.send(line)
        while b"\n" not in self._received:
            if len(self._received) > _LONGEST_LINE or not (more := self._receive()):
                raise RasError(f"it does not answer {line!r} with a line: not NCCL's RAS")
            self._received += more
        answer, _, self._received = self._received.partition(b"\n")
        return answer.decode(errors="replace").strip()

    def rest(self, longest: int) -> bytes:
        """Receive until the end of the connection, at most the given number of bytes."""
        parts, size = [self._received], len(self._received)
        while more := self._receive():
            parts.append(more)
            size += len(more)
            if size > longest:
                raise RasError(f"its report exceeds {longest >> 20} MiB")
        return b"".join(parts)

    def _receive(self) -> bytes:
        self._socket.settimeout(_left(self.until))
        return self._socket.recv(1 << 16)


def _state_of_job(session: _Session, greeting: str, longest: int) -> bytes:
    if greeting.upper() != "SERVER PROTOCOL 2":
        raise RasError(f"expected 'SERVER PROTOCOL 2', got {greeting[:60]!r}")
    for line, hint in (
        ("TIMEOUT 1", ""),  # of NCCL, for ranks that do not answer
        ("SET FORMAT json", " (NCCL before 2.28.7 reports only text: run ncclras -v)"),
    ):
        answer = session.request(line)
        if answer.upper() != "OK":
            raise RasError(f"{line!r} is answered by {answer[:60]!r}{hint}")
    session.send("STATUS")
    return session.rest(longest)
