"""The kill matrix: its cells, and the actions of the ranks of a cell.

In a cell, one rank, the victim, gets a signal in a phase of an operation. All ranks run ``live``.
The victim proceeds to its phase, where the signal kills or stops it. The others must get an error
and continue without it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from pynccl import nccl
from tests.reliability.endings import Ending, ending_of, leaving_nothing
from tests.reliability.workers import Member

ABSENCE = 1.5  # the time limit of an operation for a rank that is stopped, in seconds
PATIENCE = 60.0  # and if the death of a rank must be detected earlier
_SMALL, _LARGE = 100, 200_000  # staged and direct

SIGNALS = ("SIGKILL", "SIGTERM", "SIGSTOP")
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
)
MESSAGES = ("send", "recv")
ONE_SIDED = ("put_signal", "wait_signal")
# The phases of every operation, and those that are calls themselves.
IN_OPERATION = (
    "before",
    "in",
    "midst",
    "queued",
    "group",
    "plan",
    "graph",
    "idle",
    "finalize",
    "close",
)
CALLS = ("split", "shrink", "window", "suspend", "init")
MAKES = ("shrink", "init")  # by a rendezvous, which one more rank joins late


@dataclass(frozen=True)
class Cell:
    """Attributes:
    number: its position in the table, and the seed of its random choices.
    """

    provider: str
    number: int
    signal: str
    phase: str
    operation: str
    nranks: int
    victim: int

    def __str__(self) -> str:
        phase = self.phase if self.phase in CALLS else f"{self.phase}-{self.operation}"
        names = f"{self.provider}-{self.number}-{self.signal}-{phase}"
        return f"{names}-{self.victim} of {self.nranks}"

    @property
    def notices_death(self) -> bool:
        """Detected before a time limit, through shared memory."""
        return self.signal != "SIGSTOP" and self.provider == "host"

    @property
    def limit(self) -> float:
        return PATIENCE if self.notices_death else ABSENCE

    @property
    def leaves(self) -> bool:
        """Whether survivors keep something: a rendezvous that answers late ranks in the background
        for a while, or the handle of a revoked communicator that may be in a graph of NCCL.
        """
        return self.phase in MAKES or (self.provider == "cuda" and self.phase == "graph")

    @property
    def names_rank(self) -> bool:
        """For a live rank: in the text of one survivor, which informed the others."""
        ends = self.phase in ("finalize", "close") and self.signal == "SIGSTOP"
        return self.provider == "host" and not ends

    def chance(self) -> random.Random:
        """The same on all ranks."""
        return random.Random(self.number)


def table(provider: str, seed: int, count: int) -> list[Cell]:
    """The given number of cells; the first ones cover every signal in every phase."""
    chance = random.Random(seed)
    operations = itertools.cycle(
        chance.sample(names := COLLECTIVES + MESSAGES + ONE_SIDED, len(names))
    )
    pairs = list(itertools.product(SIGNALS, IN_OPERATION + CALLS))
    cells: list[Cell] = []
    while len(cells) < count:
        chance.shuffle(pairs)
        for name, phase in pairs:
            nranks = chance.choice((3, 4) if phase in MAKES else (2, 3, 4))
            operation = "" if phase in CALLS else next(operations)
            cells.append(
                Cell(provider, len(cells), name, phase, operation, nranks, chance.randrange(nranks))
            )
    return cells[:count]


class Scene:
    """A rank of a cell: its communicator, buffers and stream."""

    def __init__(self, member: Member, cell: Cell) -> None:
        self.member, self.cell = member, cell
        self.chance = cell.chance()
        self.count = self.chance.choice((_SMALL, _LARGE))
        others = [rank for rank in range(cell.nranks) if rank != cell.victim]
        # Arrives last if the victim waits in the call; excluded by shrink.
        self.late = self.chance.choice(others)
        self.is_victim = member.rank == cell.victim
        self.root = self.chance.randrange(cell.nranks)
        self.calling, self.began = "", 0.0
        self.comm: nccl.Communicator | None = None
        self.stream: nccl.Stream | None = None

    def connect(self, unique_id: bytes) -> None:
        member, cell = self.member, self.cell
        init_timeout = cell.limit if cell.phase == "init" else None
        self.comm = nccl.Communicator(
            cell.nranks,
            unique_id,
            member.rank,
            config=nccl.Config(timeout=cell.limit, init_timeout=init_timeout),
            provider=member.provider,
            device=member.device,
        )
        # Not late before the signal, even on a busy machine.
        self.comm.timeout = PATIENCE
        # On CPUs, calls also block.
        blocking = member.provider == "host" and self.chance.random() < 0.5
        self.stream = None if blocking else member.stream()
        ones = np.ones(self.count, np.float32)
        self.one, self.other, self.last = (member.memory.put(ones) for _ in range(3))
        self.received = [member.memory.put(ones) for _ in range(self.cell.nranks)]
        blocks = np.ones(self.count * cell.nranks, np.float32)
        self.blocks, self.results = member.memory.put(blocks), member.memory.put(blocks)
        if cell.operation in ONE_SIDED:
            self.buffer = self.comm.mem_alloc(self.count, "float32")
            self.window = self.comm.register_window(self.buffer)
        self.call("all_reduce", lambda: self.comm.all_reduce(self.other, stream=self.stream))
        self.synchronize()
        self.comm.timeout = cell.limit

    def call(self, name: str, function: Callable[[], object]) -> None:
        self.calling, self.began = name, time.monotonic()
        function()

    def operate(self) -> None:
        """The cell's operation on the stream; if it has a peer, that is the victim."""
        comm, root, stream = self.comm, self.root, self.stream
        one, other, blocks, results = self.one, self.other, self.blocks, self.results
        at_root = self.member.rank == root
        name = self.cell.operation
        match name:
            case "all_reduce":
                self.call(name, lambda: comm.all_reduce(one, nccl.MAX, stream=stream))
            case "broadcast":
                self.call(name, lambda: comm.broadcast(one, root, stream=stream))
            case "reduce":
                out = {"out": other} if at_root else {}
                self.call(name, lambda: comm.reduce(one, root, nccl.MAX, stream=stream, **out))
            case "all_gather":
                self.call(name, lambda: comm.all_gather(one, out=results, stream=stream))
            case "reduce_scatter":
                self.call(name, lambda: comm.reduce_scatter(blocks, out=other, stream=stream))
            case "all_to_all":
                self.call(name, lambda: comm.all_to_all(blocks, out=results, stream=stream))
            case "gather":
                out = {"out": results} if at_root else {}
                self.call(name, lambda: comm.gather(one, root, stream=stream, **out))
            case "scatter":
                tensor = blocks if at_root else None
                self.call(name, lambda: comm.scatter(tensor, root, out=other, stream=stream))
            case _:
                self._with_peers(name)

    def _with_peers(self, name: str) -> None:
        """The victim's counterpart of each survivor's operation."""
        comm, stream, victim = self.comm, self.stream, self.cell.victim
        peers = [victim]
        if self.is_victim:
            name = {"send": "recv", "recv": "send"}.get(name) or (
                "wait_signal" if name == "put_signal" else "put_signal"
            )
            peers = [rank for rank in range(self.cell.nranks) if rank != victim]
        for peer in peers:
            match name:
                case "send":
                    self.call(name, lambda peer=peer: comm.send(self.one, peer, stream=stream))
                case "recv":
                    self.call(
                        name, lambda peer=peer: comm.recv(self.received[peer], peer, stream=stream)
                    )
                case "put_signal":
                    self.call(
                        name,
                        lambda peer=peer: comm.put_signal(
                            self.buffer, peer, self.window, stream=stream
                        ),
                    )
                case "wait_signal":
                    self.call(name, lambda peer=peer: comm.wait_signal(peer, stream=stream))

    def close_step(self) -> None:
        """An operation that waits for all ranks, unlike perhaps the cell's."""
        self.call("all_reduce", lambda: self.comm.all_reduce(self.last, stream=self.stream))

    def step(self) -> None:
        self.operate()
        self.close_step()

    def synchronize(self) -> None:
        """Wait for the stream, and raise the communicator's error: on GPUs a stream whose
        operations were ended completes without an error.
        """
        if self.stream:
            self.stream.synchronize()
        if error := self.comm.async_error():
            raise error

    def finish(self) -> None:
        """Run the step twice, because the first one may require nothing more of a victim that is
        stopped in it.
        """
        for _ in range(2):
            self.step()
            self.synchronize()

    def ready(self) -> None:
        self.member.report("ready")

    @contextlib.contextmanager
    def ready_when_issued(self) -> Iterator[None]:
        """Report that this rank is ready once the block has issued an operation."""
        done = threading.Event()
        records = self.comm.flight_record()
        last = records[-1].sequence if records else 0

        def watch() -> None:
            while not done.is_set():
                records = self.comm.flight_record()
                if records and records[-1].sequence > last:
                    break
                time.sleep(0.001)
            self.ready()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _before(scene: Scene) -> None:
    if scene.is_victim:
        scene.ready()
        scene.member.sleep_for_ever()
    with scene.ready_when_issued():
        scene.step()
        scene.synchronize()


def _in(scene: Scene) -> None:
    if scene.member.rank == scene.late:
        scene.ready()
        scene.member.hear("go")
        scene.finish()
    with scene.ready_when_issued():
        scene.finish()


def _midst(scene: Scene) -> None:
    turns = scene.chance.randrange(1, 30)
    if not scene.is_victim:
        scene.ready()
    for turn in itertools.count():
        scene.step()
        scene.synchronize()
        if scene.is_victim and turn == turns:
            scene.ready()


def _queued(scene: Scene) -> None:
    scene.stream = scene.stream or scene.member.stream()
    last = scene.chance.choice((scene.late, scene.cell.victim))
    if scene.member.rank == last:
        scene.ready()
        scene.member.hear("go")
    for _ in range(2):
        scene.step()
    if scene.member.rank != last:
        scene.ready()
    scene.synchronize()
    scene.finish()


def _group(scene: Scene) -> None:
    with scene.ready_when_issued() if not scene.is_victim else contextlib.nullcontext():
        with nccl.group():
            scene.operate()
            if scene.is_victim:
                scene.ready()
                scene.member.sleep_for_ever()
        scene.close_step()
        scene.synchronize()


def _replayed(scene: Scene, replay: Callable[[], object]) -> None:
    """The victim may reach the second replay; if so, another rank is late."""
    replay()
    scene.synchronize()
    victim_replays = scene.chance.random() < 0.5
    if scene.is_victim and not victim_replays:
        scene.ready()
        scene.member.sleep_for_ever()
    if scene.member.rank == scene.late and victim_replays:
        scene.ready()
        scene.member.hear("go")
    else:
        scene.ready()
    for _ in range(2):  # the first one may require nothing more of a stopped victim
        scene.began = time.monotonic()
        replay()
        scene.synchronize()


def _plan(scene: Scene) -> None:
    with nccl.plan() as plan:
        scene.step()
    _replayed(scene, plan)


def _graph(scene: Scene) -> None:
    scene.stream = scene.stream or scene.member.stream()
    with nccl.capture(scene.stream) as graph:
        scene.step()
    try:
        _replayed(scene, lambda: graph.launch(scene.stream))
    finally:
        graph.close()


def _idle(scene: Scene) -> None:
    scene.ready()
    if scene.is_victim:
        scene.member.sleep_for_ever()
    scene.member.hear("go")
    scene.step()
    scene.synchronize()


def _ended_by(call: Callable[[nccl.Communicator], object]) -> Callable[[Scene], None]:
    def phase(scene: Scene) -> None:
        if scene.is_victim:
            scene.ready()
            scene.member.sleep_for_ever()
        scene.stream = scene.stream or scene.member.stream()
        scene.step()
        scene.ready()
        scene.calling, scene.began = "Finalize|Destroy", time.monotonic()
        call(scene.comm)
        scene.synchronize()

    return phase


def _called(name: str, call: Callable[[Scene], object]) -> Callable[[Scene], None]:
    def phase(scene: Scene) -> None:
        scene.ready()
        if scene.is_victim:
            scene.member.sleep_for_ever()
        scene.call(name, lambda: call(scene))
        scene.synchronize()

    return phase


def _shrink(scene: Scene) -> None:
    scene.ready()
    if scene.is_victim:
        scene.member.sleep_for_ever()
    if scene.member.rank != scene.late:
        scene.call("Shrink", lambda: scene.comm.shrink([scene.late]))


def _init(scene: Scene) -> None:
    unique_id = scene.member.share_id()  # including a victim that does not survive
    if scene.cell.notices_death and scene.member.rank != scene.late:
        return _init_with_victim(scene, unique_id)
    scene.ready()
    if scene.cell.notices_death:
        scene.member.hear("go")
    if scene.is_victim:
        scene.member.sleep_for_ever()
    scene.call("InitRank", lambda: scene.connect(unique_id))


def _init_with_victim(scene: Scene, unique_id: bytes) -> None:
    """Only the death of a rank that has joined is detected: all have except the last one."""
    member, nranks = scene.member, scene.cell.nranks
    scene.calling = "GetAsyncError"
    config = nccl.Config(blocking=False, init_timeout=PATIENCE)
    scene.comm = comm = nccl.Communicator(
        nranks, unique_id, member.rank, config=config, provider=member.provider
    )
    wait_until_joined(comm, nranks - 1)
    scene.ready()
    if scene.is_victim:
        member.sleep_for_ever()
    scene.began = time.monotonic()
    comm.wait_ready(PATIENCE)


def wait_until_joined(comm: nccl.Communicator, ranks: int) -> None:
    """Wait until so many ranks, but not all, have joined a non-blocking communicator."""
    text = ""
    while f"{ranks} of {comm.nranks} ranks have joined" not in text:
        with pytest.raises(nccl.NcclTimeoutError) as caught:
            comm.wait_ready(0.02)
        text = str(caught.value)


_PHASES: dict[str, Callable[[Scene], None]] = {
    "before": _before,
    "in": _in,
    "midst": _midst,
    "queued": _queued,
    "group": _group,
    "plan": _plan,
    "graph": _graph,
    "idle": _idle,
    "finalize": _ended_by(lambda comm: comm.finalize()),
    "close": _ended_by(lambda comm: comm.close()),
    "split": _called("Split", lambda scene: scene.comm.split(0)),
    "shrink": _shrink,
    "window": _called(
        "WindowRegister|all_gather|AllGather",
        lambda scene: scene.comm.register_window(scene.comm.mem_alloc(4096)),
    ),
    "suspend": _called("Suspend", lambda scene: scene.comm.suspend()),
    "init": _init,
}


def live_and_leave(member: Member, cell: Cell) -> Ending | None:
    """Run a rank of a cell; return how its wait ended, None without a wait."""
    scene = Scene(member, cell)
    ending = None
    try:
        if cell.phase != "init":
            scene.connect(member.share_id())
        _PHASES[cell.phase](scene)
    except nccl.NcclError as error:
        ending = ending_of(error, scene.began, scene.calling, scene.comm)
        scene.ready()  # the limit of another rank may have expired before it was
    _recover(scene, ended=ending is not None)
    if scene.stream:  # its operations end here, and use their buffers until then
        with contextlib.suppress(nccl.NcclError):
            scene.stream.synchronize()
    return ending


@leaving_nothing
def live(member: Member, cell: Cell) -> Ending | None:
    """The same, and check that nothing leaks in the process."""
    return live_and_leave(member, cell)


def _recover(scene: Scene, *, ended: bool) -> None:
    """Continue without the victim, and without the rank that a shrink excludes."""
    member, cell, comm = scene.member, scene.cell, scene.comm
    excluded = {cell.victim} | ({scene.late} if cell.phase == "shrink" else set())
    members = [rank for rank in range(cell.nranks) if rank not in excluded]
    if member.rank in members:
        assert ended, f"nothing was raised; the last call was {scene.calling}"
    if cell.phase == "init":
        unique_id = member.share_id(members[0])
        smaller = nccl.Communicator(
            len(members), unique_id, members.index(member.rank), provider=member.provider,
            device=member.device,
        )  # fmt: skip
    elif member.rank not in members or cell.phase == "close":
        comm.abort()
        return
    else:
        comm.timeout = PATIENCE  # a rank on a busy machine does not count as missing
        if member.provider == "host":
            smaller = comm.shrink(sorted(excluded), abort=True)
        else:  # NCCL refuses to shrink it once its network has noticed the death
            smaller = comm.recover(PATIENCE, store=member.store(), exclude=sorted(excluded))
    with smaller:
        buffer = member.memory.put(np.full(1000, 1.0 + member.rank, np.float32))
        smaller.all_reduce(buffer)
        assert (member.memory.get(buffer) == sum(1.0 + rank for rank in members)).all()
    if comm:
        comm.abort()
