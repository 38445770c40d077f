"""Proves that hostnccl's thresholds derive from measurements: the values for several machines,
which files are trusted, the precedence of the environment, and the agreement of a world's ranks.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pynccl import nccl, testing
from tests.support.commands import python_output
from tests.support.cpp import compile_with_parts, compiler
from tests.support.tier import FULL

_KIB, _MIB = 2**10, 2**20
_NEVER = 2**40
_KEYS = (
    "STREAM",
    "DIRECT",
    "DIRECT_ALL_GATHER",
    "DIRECT_ROOTED",
    "DIRECT_MESSAGE",
    "DIRECT_EXCHANGE",
)
_DEFAULTS = [32 * _KIB, 16 * _MIB, 16 * _MIB, 16 * _MIB, 16 * _MIB, 64 * _KIB]

# A round trip of a line in ns; us for 16 and 256 KiB: a message, messages both ways, blocks of a
# collective, each through the caches and past them, and direct reads. The first two are as measured
# on an AMD EPYC (Zen 4): its two virtual CPUs were far apart, then close. The third is a machine
# with slow copies through shared memory; on the fourth ranks cannot read each other's memory.
FAR = (220, (4.4, 48), (3.1, 27), (5.5, 77), (3.6, 50), (4.0, 50), (3.0, 28), (3.8, 30))
_NEAR = (50, (1.5, 15), (2.8, 25), (3.0, 33), (3.4, 42), (3.0, 33), (3.0, 38), (3.7, 31))
_SLOW = (254, (6.0, 80), (5.5, 75), (10, 140), (9.0, 120), (8.0, 110), (8.0, 100), (5.0, 40))
_IMPOSSIBLE = (
    254,
    (5.0, 1.0),
    (5.0, 1.0),
    (5.0, 1.0),
    (5.0, 1.0),
    (5.0, 1.0),
    (5.0, 1.0),
    (5.0, 1.0),
)
_UNREADABLE = (*FAR[:7], (0, 0))

# The minimum and maximum of each threshold, in KiB.
_EXPECTED: dict[tuple[object, ...], tuple[list[int], list[int]]] = {
    FAR: ([16, 4096, 32768, 32768, 32768, 16], [16, 4096, 32768, 32768, 32768, 64]),
    _NEAR: (
        [_NEVER >> 10, 4096, 32768, 32768, 32768, 32],
        [_NEVER >> 10, 4096, 32768, 32768, 32768, 1024],
    ),
    _SLOW: ([16, 64, 64, 64, 16, 16], [64, 128, 128, 128, 64, 32]),
    _UNREADABLE: ([16, 4096, 32768, 32768, 32768, 4096], [16, 4096, 32768, 32768, 32768, 4096]),
}


def content(
    machine: tuple[object, ...], boot: bytes | None = None, spread: float = 1.25, version: int = 2
) -> bytes:
    """The bytes of a file of measurements, of 2026-11-27 04:10 UTC."""
    identity = 0xCBF29CE484222325
    for byte in boot or Path("/proc/sys/kernel/random/boot_id").read_bytes():
        identity = ((identity ^ byte) * 0x100000001B3) % 2**64
    round_trip, *times = machine
    numbers = [us * 1000 for pair in times for us in pair]  # type: ignore[attr-defined]
    packed = struct.pack(
        "<16sQ15d", f"hostnccl tune {version}".encode(), identity, round_trip, *numbers
    )
    if version > 1:
        packed += struct.pack("<dq", spread, 1795752600)
    return packed + hashlib.sha256(packed).digest()


def _write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def _thresholds(**env: object) -> list[int]:
    """The thresholds that a new interpreter shows."""
    code = "from pynccl import nccl; p = nccl.params('host'); "
    code += f"print([p.param(f'HOSTNCCL_{{k}}_BYTES').get() for k in {_KEYS}])"
    return eval(_python(code, **env))  # a list of numbers, printed by us


def _python(code: str, **env: object) -> str:
    variables = {f"HOSTNCCL_{key}": str(value) for key, value in env.items()}
    return python_output(code, without="HOSTNCCL_", **variables)


@pytest.mark.parametrize("machine", _EXPECTED, ids=["far", "near", "slow", "unreadable"])
def test_thresholds_follow_from_the_machine(tmp_path: Path, machine: tuple[object, ...]) -> None:
    found = _thresholds(TUNING_FILE=_write(tmp_path / "file", content(machine)))
    for key, value, least, most in zip(_KEYS, found, *_EXPECTED[machine], strict=True):
        assert least * _KIB <= value <= most * _KIB, (key, found)
    assert found != _DEFAULTS


def _explain(rank: testing.Rank) -> list[nccl.Explanation]:
    comm = rank.communicator(0, provider="host")
    sizes = [16 * _KIB, 256 * _KIB, 40 * _MIB]  # of a rank's contribution
    return [
        comm.explain(operation, nbytes * (2 if operation in ("all_gather", "gather") else 1))
        for operation in ("all_gather", "broadcast", "all_reduce", "reduce_scatter", "gather")
        for nbytes in sizes
    ]


@pytest.mark.parametrize("machine", _EXPECTED, ids=["far", "near", "slow", "unreadable"])
def test_an_explanation_contains_the_path_and_the_measured_times(
    tmp_path: Path, machine: tuple[Any, ...]
) -> None:
    """Each threshold decides, and the times are those of the faster copy."""
    file = _write(tmp_path / "file", content(machine))
    env = {"HOSTNCCL_TUNING": "on", "HOSTNCCL_TUNING_FILE": str(file)}
    found, other = testing.launch(2, _explain, unique_ids=1, env=env, timeout=60)
    assert found == other
    params = _thresholds(TUNING_FILE=file)
    gather, rooted, reduction = params[2], params[3], 16 * _MIB
    direct_from = {"all_gather": gather, "broadcast": rooted, "gather": rooted}
    round_trip, messages, blocks, direct = machine[0], machine[1:3], machine[5:7], machine[7]
    streams = params[0] <= 256 * _KIB
    for one in found:
        contribution = one.nbytes // (2 if one.operation in ("all_gather", "gather") else 1)
        is_direct = contribution >= direct_from.get(one.operation, reduction)
        assert one.algorithm == ("direct" if is_direct else "staged")
        chunk = 256 * _KIB // (2 if one.operation == "reduce_scatter" else 1)
        assert one.chunk == (None if is_direct else chunk)
        assert one.rounds == (None if is_direct else -(-contribution // 256 // _KIB))
        if one.operation not in direct_from:
            assert one.costs == {}
            continue
        staged = (blocks if one.operation == "all_gather" else messages)[streams]
        column = {16 * _KIB: 0, 256 * _KIB: 1}.get(contribution)
        if column is None:
            continue
        assert one.costs["staged", ""] == pytest.approx(staged[column])
        if direct[0]:
            read = 1.25 * (direct[column] + 2 * round_trip / 1000)
            assert one.costs["direct", ""] == pytest.approx(read)
        else:
            assert ("direct", "") not in one.costs
    text = str(found[1])
    assert text.startswith("all_gather of 524288 bytes, 2 ranks, hostnccl 2.")
    assert "staged" in text.splitlines()[-1 - bool(direct[0])]


def test_an_explanation_of_ranks_that_cannot_read_each_other(tmp_path: Path) -> None:
    env = {"HOSTNCCL_TUNING": "off", "HOSTNCCL_CMA": "0"}
    for one in testing.launch(2, _explain, unique_ids=1, env=env, timeout=60)[0]:
        assert (one.algorithm, one.costs) == ("staged", {})
    comms = nccl.Communicator.init_all(2, provider="host")
    assert comms[1].explain("all_to_all", 16 * _KIB).algorithm == "direct"  # within the process
    comms[1].abort()
    with pytest.raises((ValueError, RuntimeError)):
        comms[1].explain("all_reduce", 4)
    comms[0].abort()


def test_only_a_sound_file_is_used(tmp_path: Path) -> None:
    sound = content(_SLOW)
    file = _write(tmp_path / "sound", sound)
    assert _thresholds(TUNING_FILE=file) != _DEFAULTS
    flipped = bytearray(sound)
    flipped[40] ^= 1
    unusable = {
        "short": _write(tmp_path / "short", sound[:-1]),
        "long": _write(tmp_path / "long", sound + b"\0"),
        "flipped": _write(tmp_path / "flipped", bytes(flipped)),
        "format 1": _write(tmp_path / "format1", content(_SLOW, version=1)),
        "later format": _write(tmp_path / "format3", content(_SLOW, version=3)),
        "disturbed": _write(tmp_path / "disturbed", content(_SLOW, spread=9)),
        "no spread": _write(tmp_path / "spread", content(_SLOW, spread=float("nan"))),
        "earlier boot": _write(tmp_path / "boot", content(_SLOW, b"another\n")),
        "readable by others": _write(tmp_path / "open", sound, 0o644),
        "impossible": _write(tmp_path / "impossible", content(_IMPOSSIBLE)),
        "not a number": _write(tmp_path / "nan", content((float("nan"), *_SLOW[1:]))),
        "interrupted": _write(tmp_path / "slow", content((*_SLOW[:3], (10, 3900), *_SLOW[4:]))),
        "shared CPU": _write(tmp_path / "shared", content((4700, *_SLOW[1:]))),
        "missing": tmp_path / "missing",
        "folder": tmp_path,
        "link": tmp_path / "link",
        "second name": tmp_path / "second",
        "pipe": tmp_path / "pipe",
        "device": Path("/dev/zero"),
    }
    unusable["link"].symlink_to(file)
    os.mkfifo(unusable["pipe"], 0o600)
    (tmp_path / "first").write_bytes(sound)
    (tmp_path / "first").chmod(0o600)
    unusable["second name"].hardlink_to(tmp_path / "first")
    used = [what for what, path in unusable.items() if _thresholds(TUNING_FILE=path) != _DEFAULTS]
    assert used == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    file = _write(tmp_path / "file", content(_SLOW))
    os.chown(file, 65534, -1)
    assert _thresholds(TUNING_FILE=file) == _DEFAULTS


def test_the_environment_wins(tmp_path: Path) -> None:
    file = _write(tmp_path / "file", content(_SLOW))
    measured = _thresholds(TUNING_FILE=file)
    assert _thresholds(TUNING_FILE=file, TUNING="off") == _DEFAULTS
    assert _thresholds(TUNING_FILE=file, DIRECT_MESSAGE_BYTES=12345) == [
        *measured[:4],
        12345,
        12345,
    ]
    assert _thresholds(TUNING_FILE=file, DIRECT_BYTES=7) == [measured[0], 7, 7, 7, *measured[4:]]
    with pytest.raises(AssertionError, match="HOSTNCCL_TUNING=perhaps"):
        _thresholds(TUNING="perhaps")


def test_info_shows_the_source_of_values(tmp_path: Path) -> None:
    file = _write(tmp_path / "file", content(FAR))
    code = "from pynccl.cli import main; main(['info', '--all'])"
    printed = _python(code, TUNING_FILE=file, DIRECT_BYTES=7)
    assert "value=16384 set_by=measured default=32768" in printed  # HOSTNCCL_STREAM_BYTES
    assert "value=7 set_by=environment default=16777216" in printed
    assert "value=131072 set_by=default default=131072" in printed
    assert "measured 2026-11-27 04:10 UTC, spread 1.2: round trip of a line 220 ns; " in printed
    assert "us for 16/256 KiB: message 4.4/48.0" in printed
    assert "set_by=measured" not in _python(code, TUNING_FILE=file, TUNING="off")


class _Process:
    """Runs measuring_process.cpp, whose communicators have planted calibrations."""

    def __init__(self, program: Path, file: Path) -> None:
        env = {**os.environ, "HOSTNCCL_TUNING": "on", "HOSTNCCL_TUNING_FILE": str(file)}
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def create_communicator(self, samples: Sequence[float]) -> str:
        """Return whether it measured and the HOSTNCCL_TUNING shown, up to the times."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*samples, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().partition(" ns;")[0].strip()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """measuring_process.cpp, compiled."""
    built = tmp_path_factory.mktemp("program") / "measuring_process"
    own = [Path(__file__).with_name("measuring_process.cpp")]
    parts = [f"base/{name}.cpp" for name in ("tuning", "params", "process", "error")]
    compile_with_parts(compiler(), built, own, parts, [])
    return built


# Round trips of a line in ns. A preemption is a sample of milliseconds.
_CALM = [100, 108, 98, 4e6, 102, 97, 110, 101, 103]
_DISTURBED = [100, 400, 98, 4e6, 102, 800, 300, 100, 1300]
_WORSE = [300, 2000, 4e6, 9000, 200, 900, 250, 4e6, 950]


def test_a_disturbed_measurement_is_repeated(tmp_path: Path, program: Path) -> None:
    """The calmest of a process counts until one is calm, and only that one is stored."""
    file = tmp_path / "file"
    when = "measured 2026-11-27 04:10 UTC, spread"
    with _Process(program, file) as process:
        found = [process.create_communicator(one) for one in (_WORSE, _DISTURBED, _WORSE, _CALM)]
        assert found == [
            f"measures: {when} 30.0 (disturbed): round trip of a line 950",
            f"measures: {when} 8.0 (disturbed): round trip of a line 300",
            f"measures: {when} 8.0 (disturbed): round trip of a line 300",
            f"does not measure: {when} 8.0 (disturbed): round trip of a line 300",
        ]
        assert not file.exists()
        calm = f"{when} 1.1: round trip of a line 102"
        with _Process(program, file) as other:
            assert other.create_communicator(_DISTURBED).startswith("measures: ")
            assert not file.exists()
            assert other.create_communicator(_CALM) == f"measures: {calm}"
            assert other.create_communicator(_WORSE) == f"does not measure: {calm}"
        assert process.create_communicator(_WORSE) == f"does not measure: {calm}"
    stored = file.read_bytes()
    with _Process(program, file) as later:
        assert later.create_communicator(_WORSE) == f"does not measure: {calm}"
    assert file.read_bytes() == stored


def test_a_file_of_an_earlier_format_is_replaced(tmp_path: Path, program: Path) -> None:
    file = _write(tmp_path / "file", content(_SLOW, version=1))
    with _Process(program, file) as process:
        assert process.create_communicator(_DISTURBED).startswith("measures: ")
        assert file.read_bytes() == content(_SLOW, version=1)
        assert process.create_communicator(_CALM).startswith("measures: ")
    assert file.read_bytes().startswith(b"hostnccl tune 2")


def _measure(rank: testing.Rank) -> tuple[str, list[str], int]:
    """Return HOSTNCCL_TUNING after two initializations, the thresholds, and wrong elements."""
    import numpy as np

    for unique_id in range(2):
        comm = rank.communicator(unique_id, provider="host")
        wrong = 0
        for count in (1, 5000, 100_000, 5_000_000):
            found = np.full(count, rank.rank + 1, np.float32)
            comm.all_reduce(found)
            wrong += int((found != rank.world_size * (rank.world_size + 1) / 2).sum())
    params = nccl.params("host")
    return params["HOSTNCCL_TUNING"], [params[f"HOSTNCCL_{key}_BYTES"] for key in _KEYS], wrong


@pytest.mark.parametrize("nranks", [2, 4] if FULL else [2])
def test_the_first_world_measures(tmp_path: Path, nranks: int) -> None:
    """Once, for all ranks and for later worlds; a busy machine stores nothing."""
    file = tmp_path / "file"
    env = {"HOSTNCCL_TUNING": "on", "HOSTNCCL_TUNING_FILE": str(file)}
    results = testing.launch(nranks, _measure, unique_ids=2, env=env, timeout=60)
    shown, thresholds, _ = results[0]
    assert results == [(shown, thresholds, 0)] * nranks
    assert file.exists() == (shown.startswith("measured ") and "(disturbed)" not in shown)
    if not file.exists():
        assert "(disturbed)" in shown or thresholds == [str(value) for value in _DEFAULTS]
        return
    assert file.stat().st_mode & 0o777 == 0o600
    assert [str(value) for value in _thresholds(TUNING_FILE=file)] == thresholds
    assert list(tmp_path.iterdir()) == [file]
    before = file.read_bytes()
    testing.launch(nranks, _measure, unique_ids=2, env=env, timeout=60)
    assert file.read_bytes() == before


def _first_initialisation(rank: testing.Rank, folder: str) -> float:
    """The seconds of the first initialization, once all ranks are ready."""
    nccl.get_version("host")
    Path(folder, str(rank.rank)).touch()
    while len(list(Path(folder).iterdir())) < rank.world_size:
        time.sleep(0.001)
    start = time.perf_counter()
    rank.communicator(0, provider="host")
    return time.perf_counter() - start


def test_measuring_is_bounded(tmp_path: Path) -> None:
    """It takes a few milliseconds; the limit is for a busy machine. /dev/null stores no result."""
    env = {"HOSTNCCL_TUNING": "on", "HOSTNCCL_TUNING_FILE": "/dev/null"}
    fastest, limit = 1.0, 0.2
    for run in range(10):
        folder = tmp_path / str(run)
        folder.mkdir()
        times = testing.launch(2, _first_initialisation, (str(folder),), env=env, timeout=60)
        fastest = min(fastest, *times)
        if fastest < limit:
            break
    assert fastest < limit
    assert Path("/dev/null").is_char_device()


def _disagree(rank: testing.Rank, folder: str) -> bool:
    """Ranks with different settings; return whether this one shows measured thresholds."""
    import numpy as np

    if rank.rank == 1:
        os.environ["HOSTNCCL_TUNING"] = "off"
        os.environ["HOSTNCCL_DIRECT_BYTES"] = "70000"
    if rank.rank == 2:
        os.environ["HOSTNCCL_TUNING_FILE"] = f"{folder}/near"
    comm = rank.communicator(0, provider="host")
    for nbytes in (4, 20_000, 66_000, 80_000, 300_000, 2 * _MIB):
        sent = np.full(nbytes // 4, rank.rank, np.float32)
        found = np.zeros((rank.world_size, nbytes // 4), np.float32)
        comm.all_gather(sent, out=found)
        assert (found == np.arange(rank.world_size)[:, None]).all()
        comm.broadcast(sent, root=2)
        assert (sent == 2).all()
        comm.all_reduce(sent)
        assert (sent == 2 * rank.world_size).all()
        with nccl.group():
            comm.send(sent, (rank.rank + 1) % rank.world_size)
            comm.recv(found[0], (rank.rank - 1) % rank.world_size)
        assert (found[0] == 2 * rank.world_size).all()
    return "measured" in nccl.params("host")["HOSTNCCL_TUNING"]


def _touched_memory(rank: testing.Rank, cpus: list[int]) -> list[int]:
    """The shared memory touched by a single message, and by one in a group with another."""
    import numpy as np

    os.sched_setaffinity(0, cpus)
    comm, peer = rank.communicator(0, provider="host"), 1 - rank.rank
    sent, received = np.ones(_MIB, np.uint8), np.empty(_MIB, np.uint8)
    before = comm.memory_stats().total
    if rank.rank == 0:
        comm.send(sent, peer)
    else:
        comm.recv(received, peer)
    alone = comm.memory_stats().total
    with nccl.group():
        comm.send(sent, peer)
        comm.recv(received, peer)
    return [alone - before, comm.memory_stats().total - alone]


@pytest.mark.parametrize("count", [1, 2])
def test_a_message_alone_has_a_threshold_of_its_own(count: int) -> None:
    """A staged message touches all cells of its ring, a direct one only one cell."""
    cpus = sorted(os.sched_getaffinity(0))[:count]
    few, many = 32 * _KIB, 96 * _KIB
    env = {"HOSTNCCL_DIRECT_MESSAGE_BYTES": "0", "HOSTNCCL_DIRECT_EXCHANGE_BYTES": "0"}
    direct = testing.launch(2, _touched_memory, (cpus,), unique_ids=1, env=env, timeout=60)[0]
    if direct[1] > many:
        pytest.skip("ranks cannot read each other's memory here")
    env["HOSTNCCL_DIRECT_EXCHANGE_BYTES"] = str(_NEVER)
    found = testing.launch(2, _touched_memory, (cpus,), unique_ids=1, env=env, timeout=60)
    alone, grouped = found[0]
    assert alone < few
    assert grouped > many


def test_ranks_with_other_settings_agree(tmp_path: Path) -> None:
    """Direct reads on one rank and staging on another would deadlock."""
    _write(tmp_path / "slow", content(_SLOW))
    _write(tmp_path / "near", content(_NEAR))
    env = {"HOSTNCCL_TUNING": "on", "HOSTNCCL_TUNING_FILE": str(tmp_path / "slow")}
    shown = testing.launch(3, _disagree, (str(tmp_path),), unique_ids=1, env=env, timeout=60)
    assert shown == [True, False, True]
