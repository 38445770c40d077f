"""The seed inputs of tests.fuzz.readers: small files like those that pynccl and NCCL write.

Recordings and traces come from one run. To record them again:

    python -m tests.fuzz.corpus
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pynccl import _C, nccl
from pynccl.weights import messages as weights
from pynccl.weights.layout import Box, Part
from tests.support import ras
from tests.support.flight_dumps import communicator, dump_json, record

if TYPE_CHECKING:
    from tests.support.rank import Rank

__all__ = ["seeds"]

_FOLDER = Path(__file__).with_name("corpus")  # recordings and traces
_COUNT = 16


def _program(rank: Rank) -> None:
    """Run operations of every kind, in groups, graphs, windows and ranges."""
    comm, stream = rank.comm, nccl.Stream(rank.provider)
    peer = 1 - rank.rank
    x, y = np.ones(_COUNT, np.float32), np.zeros(2 * _COUNT, np.float32)
    comm.all_reduce(x)
    comm.reduce(x, 1, nccl.MAX)
    comm.all_gather(x, out=y)
    with nccl.range("step", compute=True, stream=stream), nccl.group():
        comm.broadcast(x, 0, stream=stream)
        comm.send(x, peer, stream=stream)
        comm.recv(y[:_COUNT], peer, stream=stream)
    memory = comm.mem_alloc(4096)
    window = comm.register_window(memory)
    comm.put_signal(np.from_dlpack(memory).view(np.float32)[:4], peer, window, 64, stream=stream)
    comm.wait_signal(peer, stream=stream)
    stream.synchronize()
    with nccl.capture(stream) as graph:
        comm.all_reduce(x, stream=stream)
    graph.launch(stream)
    stream.synchronize()
    comm.barrier()
    with comm.split(0, rank.rank) as half:
        half.all_to_all(y, out=np.zeros_like(y))


def _record(rank: Rank, folder: str) -> None:
    _C.start_recording(f"{folder}/recording-{rank.rank}", 1 << 20)
    try:
        _program(rank)
    finally:
        _C.stop_recording()


def _trace(rank: Rank, folder: str) -> None:
    with nccl.trace(f"{folder}/trace-{rank.rank}.json", graphs=True):
        _program(rank)


def _own_part(path: Path) -> str:
    """Return a trace without the events for viewers, which pynccl does not read."""
    value = json.loads(path.read_text())
    return json.dumps({"traceEvents": [], "pynccl": value["pynccl"]}, separators=(",", ":"))


def _anonymous(content: bytes) -> bytes:
    """Replace the host name and boot ID by zeros, without changing the size."""
    for key in (b"host", b"boot"):
        pattern = b'("%s": ?")([^"]+)"' % key
        content = re.sub(pattern, lambda found: found[1] + b"0" * len(found[2]) + b'"', content)
    return content


def _dumps() -> list[bytes]:
    records = [
        record("all_reduce"),
        record("send", peer=1),
        record("put_signal", peer=1),
        record("broadcast", "failed"),
        record("reduce_scatter", "issued"),
    ]
    call = {"function": "ncclCommSplit", "time_created_ns": 1}
    one = communicator(0, 3, records, name="one", calls=[call], failure="rank 1 has died")
    two = communicator(1, 2, records[:2], id="b" * 16, parent="a" * 16)
    return [dump_json(0, one, two).encode()]


def _messages() -> list[bytes]:
    """Return a message of each kind of pynccl.weights."""
    layout = {
        "w": Part("bfloat16", (4, 6), Box((0, 2), (4, 6))),
        "b": Part("float32", (), Box((), ())),
    }
    plan = weights.Plan([layout], [None, layout], [0, 1, 0], 1 << 20, 4096, ["w", "b"])
    world = weights.WorldPlace([bytes(range(128))], 2, 3)
    sums = {0: (1 << 64) - 1, 1: 0}
    return [
        weights.encode(message)
        for message in (
            weights.SenderHello(1),
            weights.ReceiverHello("engine", layout),
            weights.Offer(1, layout, ["w", "b"]),
            weights.Sent(1, sums),
            weights.Checked(1, sums),
            weights.Committed(1),
            weights.Failed(1, "KeyError: 'w'", own=True),
            weights.Stopped(1),
            weights.Bye(),
            weights.Welcome(),
            weights.Begin(1, "host", plan, world),
            weights.Check(1, ["0123456789abcdef"]),
            weights.Stop(1),
            weights.Commit(7, ["engine"], ["lost"]),
            weights.Refused("given up", ["w"]),
            weights.Fail("sender 1 is lost", ["sender 1"]),
        )
    ]


def _reports() -> list[bytes]:
    """Return reports of NCCL's RAS service, and complete responses to a client."""
    ranks = [ras.rank(0), ras.rank(1), ras.rank(2, 3), ras.rank(3, abort_flag=True)]
    lost = ras.communicator(ranks[:2], [ras.lost(2), ras.lost(3, dead=True)], name="0x2")
    report = ras.report(ras.communicator(ranks), lost)
    session = b"SERVER PROTOCOL 2\nOK\nOK\n" + ras.report(ras.communicator(ranks[:1], size=1))
    old = b"SERVER PROTOCOL 2\nOK\nERROR: Unknown command SET FORMAT json\n"
    return [re.sub(rb'"pid": \d+', b'"pid": 1', one) for one in (report, session, old)]


_BUILT = {"dump": _dumps, "weights": _messages, "ras": _reports}


def seeds(target: str) -> list[bytes]:
    """Return the seed inputs of a target, the same in every run."""
    if build := _BUILT.get(target):
        return build()
    return [path.read_bytes() for path in sorted((_FOLDER / target).iterdir())]


def main() -> None:
    """Record the files again."""
    from tests.support.launcher import Launcher

    with tempfile.TemporaryDirectory() as name, Launcher() as launcher:
        launcher(2, _record, name)
        launcher(2, _trace, name)
        for path in Path(name).iterdir():
            target, _, number = path.stem.partition("-")
            content = path.read_bytes() if target == "recording" else _own_part(path).encode()
            (_FOLDER / target / f"seed-{number}").write_bytes(_anonymous(content))


if __name__ == "__main__":
    main()
