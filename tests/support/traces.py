"""Process traces constructed for tests, and traces of functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from pynccl import nccl
from pynccl.tools.trace.model import (
    Communicator,
    GraphLaunch,
    Operation,
    ProcessTrace,
    Range,
    Wait,
)

__all__ = ["CLOCKS", "MS", "STREAM", "TraceBuilder", "arguments", "communicator", "traced_by"]

MS = 1_000_000  # nanoseconds
STREAM = 0x7F00_0000_1000
# Nanoseconds: the error of the times of events, which are converted to the clock of the host. It is
# up to 40 us on an idle machine, and larger if the process stalls while it compares the clocks.
CLOCKS = 200 * MS
_START = 10**13


def communicator(id_: str, **fields: Any) -> Communicator:  # noqa: ANN401
    """A communicator of hostnccl, created from an ID."""
    values = {"joined": None, "parent": None, "name": None, "provider": "host", "device": 0}
    return Communicator(**{"id": id_, "creator": "ncclCommInitRankConfig", **values, **fields})


def arguments(kind: str) -> dict[str, Any]:
    """The arguments and the place of an operation outside groups and graphs."""
    return {
        "dtype": "float32",
        "op": "sum" if "reduce" in kind else None,
        "root": 0 if kind in ("broadcast", "reduce", "gather", "scatter") else None,
        "peer": None,
        "group": None,
        "graph": None,
        "failed": False,
    }


class TraceBuilder:
    """The trace of one rank. Times are in milliseconds from its start."""

    def __init__(
        self,
        rank: int = 0,
        nranks: int = 2,
        *,
        provider: str = "host",
        boot: str = "boot",
        shift: int = 0,
        **fields: Any,  # noqa: ANN401
    ) -> None:
        self.start = _START + shift
        self.nranks = nranks
        self.rank = rank
        pid = 1000 + rank
        self.trace = ProcessTrace(
            **{
                "rank": rank,
                "pid": pid,
                "host": "host",
                "boot": boot,
                "epoch": 1_700_000_000_000_000_000 - shift,
                "timed": True,
                "began": self.start,
                "ended": self.start + 1000 * MS,
            }
            | fields
        )
        self.communicator("a" * 16, provider=provider)
        self._sequences: Counter[str] = Counter()
        self._numbers: Counter[tuple[object, ...]] = Counter()

    def communicator(self, id_: str, **fields: Any) -> None:  # noqa: ANN401
        made = communicator(id_, **{"rank": self.rank, "nranks": self.nranks, **fields})
        self.trace.communicators[id_, made.rank] = made

    def time(self, ms: float | None) -> int | None:
        return None if ms is None else self.start + round(ms * MS)

    def operation(
        self,
        kind: str,
        began: float | None = None,
        ended: float | None = None,
        *,
        nbytes: int = 4096,
        called: float | None = None,
        returned: float | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> Operation:
        """One operation that reads and writes nbytes. The call coincides with its start."""
        id_ = fields.get("communicator", "a" * 16)
        self._sequences[id_] += 1
        message = kind in ("send", "recv")
        key = (id_, kind, fields.get("peer")) if message else (id_,)
        self._numbers[key] += 1
        called = called if called is not None else began if began is not None else 0
        nowhere = (kind == "send", kind == "recv")  # the buffers it lacks
        operation = Operation(
            **{
                "kind": kind,
                "communicator": id_,
                "sequence": self._sequences[id_],
                "number": self._numbers[key],
                "count": nbytes // 4,
                "sendbuff": 0 if nowhere[1] else 0x10000,
                "recvbuff": 0 if nowhere[0] else 0x20000,
                "stream": STREAM,
                "thread": 1000 + self.rank,
                "called": self.time(called),
                "returned": self.time(called + 0.001 if returned is None else returned),
                "began": self.time(began),
                "ended": self.time(ended),
                "sendbytes": 0 if nowhere[1] else nbytes,
                "recvbytes": 0 if nowhere[0] else nbytes,
            }
            | arguments(kind)
            | fields
        )
        self.trace.operations.append(operation)
        return operation

    def wait(self, what: str, began: float, ended: float | None, **fields: Any) -> None:  # noqa: ANN401
        """A wait. Times in ``fields`` are also in milliseconds."""
        for name in ("called", "event_recorded"):
            if name in fields:
                fields[name] = self.time(fields[name])
        self.trace.waits.append(
            Wait(
                **{
                    "what": what,
                    "communicator": None,
                    "sequence": None,
                    "stream": None,
                    "thread": 1000 + self.rank,
                    "on_device": what == "stream_event",
                    "began": self.time(began),
                    "ended": self.time(ended),
                }
                | fields
            )
        )

    def range(self, name: str, began: float, ended: float | None, **fields: Any) -> None:  # noqa: ANN401
        self.trace.ranges.append(
            Range(
                **{
                    "name": name,
                    "compute": False,
                    "stream": None,
                    "thread": 1000 + self.rank,
                    "began": self.time(began),
                    "ended": self.time(ended),
                }
                | fields
            )
        )

    def launch(self, graph: int, began: float | None, ended: float | None, **fields: Any) -> None:  # noqa: ANN401
        at = self.time(began if began is not None else 0)
        self.trace.launches.append(
            GraphLaunch(
                **{
                    "graph": graph,
                    "stream": STREAM,
                    "thread": 1000 + self.rank,
                    "called": at,
                    "returned": at + 1000,
                    "began": self.time(began),
                    "ended": self.time(ended),
                }
                | fields
            )
        )


def traced_by(function: Callable[[], object], **options: int) -> ProcessTrace:
    """The trace of a function that this process calls."""
    with nccl.trace(**options) as trace:
        function()
    assert trace.process is not None
    return trace.process
