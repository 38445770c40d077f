"""Python processes that have already imported torch, or NumPy and pytest: forks of an idle server.

Importing torch takes seconds per process, NumPy and pytest half a second, a fork milliseconds.
Tests of how a process starts and runs are valid for a fork: it has its own environment, command
line and exit status. It ends by _exit() once its threads and atexit functions are done, because
finalizing an interpreter with torch takes a second. WholePopen does finalize it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import mmap
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pynccl.testing._arguments import Environment
    from pynccl.testing._launcher import Process

__all__ = [
    "LightPopen",
    "Popen",
    "Request",
    "Server",
    "WholePopen",
    "connect",
    "program",
    "run",
    "server_of",
    "start",
    "start_rank",
]

_PR_SET_PDEATHSIG = 1
_LIGHT = ("numpy", "pytest")
_MODULES = ("torch", *_LIGHT)
_MORE = ("torch.distributed.fsdp",)  # for forks with the environment of this process
# Variables that no code reads before the fork. Any other difference in the environment requires
# another server.
_READ_LATE = (
    "PYNCCL_",
    "HOSTNCCL_",
    "NCCL_",
    "PYTEST_",
    "PYTHONPATH",
    "PATH",
    "CXX",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "SUITE",
    "BACKEND",
    "TEMP_DIR",
    "CUDA_DOUBLE_DRIVER",
    "TORCH_FR_",
    "TORCH_DIST_INIT_BARRIER",
    "TRITON_",
)
# The number of threads that torchrun sets per rank, and none that a fork would lose.
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_LENGTH = struct.Struct("<q")
_GAP_PAGES = 1 << 18  # at most


@dataclass
class Request:
    """A process to fork. Its descriptors are sent alongside, in the order of ``descriptors``."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: list[int]
    session: bool
    whole: bool  # whether to finalize its interpreter


class Server:
    """A process that has imported the modules.

    Args:
        pid: its process id.
        requests: the connection to its serve().
    """

    def __init__(self, pid: int, requests: socket.socket) -> None:
        self.pid = pid
        self._requests = requests
        self._lock = threading.Lock()

    def fork(self, request: Request, descriptors: list[int]) -> int:
        """Fork, and return the process id."""
        message = pickle.dumps(request)
        with self._lock:
            socket.send_fds(self._requests, [_LENGTH.pack(len(message))], descriptors)
            self._requests.sendall(message)
            answer = self._requests.recv(_LENGTH.size)
        if not answer:
            raise RuntimeError("the process that forks others has ended")
        pid: int = _LENGTH.unpack(answer)[0]
        return pid

    def close(self) -> None:
        self._requests.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def start(environment: Mapping[str, str], modules: tuple[str, ...], path: str = "") -> Server:
    """Start a process that imports modules, then forks others.

    Args:
        environment: its environment variables.
        modules: the modules.
        path: of a socket at which other processes connect() to it, among them its forks.
    """
    ours, theirs = socket.socketpair()
    folder = str(Path(__file__).parents[2])
    with contextlib.ExitStack() as stack:
        passed = [stack.enter_context(theirs).fileno()]
        if path:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(path)
            listening.listen()
            passed.append(listening.fileno())
        code = f"import sys; sys.path.insert(1, {folder!r}); from tests.support import warm; "
        code += f"warm.run(*warm.serve({modules!r}, *{passed}))"
        popen = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
        )
    popen.returncode = 0  # Server.close() waits for it
    return Server(popen.pid, ours)


def connect(path: str, pid: int = 0) -> None:
    """Let the process that listens at a path fork for this one.

    Args:
        path: of its socket.
        pid: its process id, for start_rank().
    """
    global inherited  # noqa: PLW0603 - of the process
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    inherited = Server(pid, connection)


inherited: Server | None = None  # set by connect(), and in forks of a process with a path
_gaps: list[mmap.mmap] = []
_servers: dict[tuple[int, tuple[str, ...], frozenset[tuple[str, str]]], Server] = {}
_lock = threading.Lock()


def own_environment() -> dict[str, str]:
    """A copy of os.environ on any thread: pytest removes PYTEST_CURRENT_TEST meanwhile."""
    from pynccl.testing._launcher import copy_environment

    return copy_environment()


def server_of(environment: Mapping[str, str], modules: tuple[str, ...] = _MODULES) -> Server:
    """The server whose forks have this environment and these modules imported."""
    if inherited is not None:
        return inherited
    early = _read_early(environment)
    key = os.getpid(), modules, frozenset(early.items())
    with _lock:
        if key not in _servers:
            usual = modules == _MODULES and early == _read_early(own_environment())
            first = {**environment, **_THREADS, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
            _servers[key] = server = start(first, modules + _MORE * usual)
            atexit.register(server.close)
        return _servers[key]


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in {**environment, **_THREADS}.items()
        if not name.startswith(_READ_LATE)
    }


class Popen(subprocess.Popen[Any]):
    """subprocess.Popen for ``[sys.executable, ...]``, forked from a process with torch imported.

    Its parent is that process, which ends with this one.
    """

    modules: tuple[str, ...] = _MODULES
    _whole = False

    def _execute_child(self, *given: Any) -> None:  # noqa: ANN401
        arguments, _, _, _, passed, folder, env = given[:7]
        reads, _, _, writes, _, errors = given[10:16]
        assert arguments[0] == sys.executable
        environment = {**(own_environment() if env is None else env)}
        server = server_of(environment, self.modules)
        ours, theirs = os.pipe()
        standard = [own if fd == -1 else fd for own, fd in enumerate((reads, writes, errors))]
        request = Request(
            list(arguments[1:]),
            environment,
            os.fspath(folder or Path.cwd()),
            [0, 1, 2, *passed],
            session=given[21],
            whole=self._whole,
        )
        try:
            self.pid = server.fork(request, [theirs, *standard, *passed])
        finally:
            os.close(theirs)
            for fd in {reads, writes, errors} - {-1, getattr(self, "_devnull", -1)}:
                os.close(fd)
        self._status = os.fdopen(ours, "rb", 0)
        self._child_created = True

    def _internal_poll(self, **_: object) -> int | None:
        if self.returncode is None:
            self._take(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None and not self._take(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        code: int = self.returncode
        return code

    def _take(self, timeout: float | None) -> bool:
        """Wait for the exit status of the process, and return whether it is known."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            if not selector.select(timeout):
                return False
        status = self._status.read(_LENGTH.size)
        self._status.close()
        self.returncode = _LENGTH.unpack(status)[0] if status else -signal.SIGKILL
        return True


class WholePopen(Popen):
    """Popen for programs whose interpreter shutdown is tested."""

    _whole = True


class LightPopen(Popen):
    """Popen without torch, for programs that import NumPy or pytest."""

    modules = _LIGHT


def start_rank(_launcher: object, environment: Environment, *, fresh: bool) -> Process:
    """Replace Launcher._start_process() of pynccl.testing: start a rank's process as a fork."""
    from pynccl.testing._launcher import Process

    server = server_of({**own_environment(), **dict(environment)})
    return Process(environment, fresh=fresh, popen=Popen, parent=server.pid)


def serve(modules: tuple[str, ...], own: int, listening: int = -1) -> tuple[CodeType, bool]:
    """Fork a process for each request, and return the program to run() in it.

    Args:
        modules: the modules to import first.
        own: the connection of the process that started this one, which ends with it.
        listening: the socket at which others connect. Their forks end with their connection.
    """
    _import(modules)
    woken, wakes = socket.socketpair()
    woken.setblocking(False)
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    owner = socket.socket(fileno=own)
    others = None if listening < 0 else socket.socket(fileno=listening)
    server, pid = os.getpid(), -1
    statuses: dict[int, int] = {}
    forks: dict[socket.socket, list[int]] = {}  # by connection
    with selectors.DefaultSelector() as selector:
        for one in filter(None, (woken, owner, others)):
            selector.register(one, selectors.EVENT_READ)
        while pid:
            asked: Any = selector.select()[0][0].fileobj
            if asked is woken:
                woken.recv(4096)
                _reap(statuses)
                continue
            if asked is others:
                selector.register(others.accept()[0], selectors.EVENT_READ)
                continue
            data, descriptors, _, _ = socket.recv_fds(asked, _LENGTH.size, 64)
            if not data:
                if asked is owner:
                    os._exit(0)
                selector.unregister(asked)
                asked.close()
                _kill(statuses.keys() & forks.pop(asked, []))
                continue
            request: Request = pickle.loads(_receive(asked, _LENGTH.unpack(data)[0]))
            pid = os.fork()
            if pid:
                forks.setdefault(asked, []).append(pid)
                statuses[pid] = descriptors[0]
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                asked.send(_LENGTH.pack(pid))
        opened: list[Any] = [wakes, *(key.fileobj for key in selector.get_map().values())]
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    if others is not None:
        _fork_ranks(others.getsockname(), server)
    for one in opened:
        one.close()
    for descriptor in (descriptors[0], *statuses.values()):
        os.close(descriptor)
    return become(request, descriptors[1:])


def _import(modules: tuple[str, ...]) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _kill(pids: set[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _fork_ranks(path: str, server: int) -> None:
    """Have pynccl.testing fork the ranks that this process launches."""
    from pynccl.testing import Launcher

    connect(path, server)
    Launcher._start_process = start_rank  # type: ignore[assignment, method-assign]


def _receive(connection: socket.socket, length: int) -> bytes:
    data = io.BytesIO()
    while (left := length - data.tell()) > 0:
        data.write(connection.recv(left))
    return data.getvalue()


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with os.fdopen(statuses.pop(pid), "wb", 0) as told, contextlib.suppress(BrokenPipeError):
            told.write(_LENGTH.pack(os.waitstatus_to_exitcode(status)))


def run(code: CodeType, whole: bool) -> None:
    """Execute a program in ``__main__``. Ends the process unless the interpreter is finalized."""
    status: object = None
    try:
        exec(code, vars(sys.modules["__main__"]))
    except SystemExit as end:
        status = end.code
        if whole or not isinstance(status, int | None):
            raise
    if not whole:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


def become(request: Request, descriptors: list[int]) -> tuple[CodeType, bool]:
    """Apply the requested descriptors, environment, folder and program to this process.

    Returns:
        The program to run().
    """
    import fcntl

    # Forks of one process share its addresses. Randomize those of libraries loaded from here on.
    pages = 1 + int.from_bytes(os.urandom(4), "little") % _GAP_PAGES
    _gaps.append(mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0))
    own = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    base = [path for path in sys.path[1:] if path not in own]
    free = max(request.descriptors) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for fd in descriptors]
    for fd in descriptors:
        os.close(fd)
    for fd, number in zip(moved, request.descriptors, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if request.session:
        os.setsid()
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].ORIGINAL_DIR = request.folder  # type: ignore[attr-defined]
    return program(request.arguments, base), request.whole


def program(arguments: list[str], base: list[str]) -> CodeType:
    """The code of ``python ARGUMENTS``, to execute as ``__main__``."""
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    rest = list(arguments)
    while rest[0] in ("-W", "-X"):
        if rest[0] == "-W":
            import warnings

            warnings.simplefilter(rest[1])
        del rest[:2]
    main = vars(sys.modules["__main__"])
    sys.argv[:] = rest[1:] if rest[0] in ("-c", "-m") else rest
    if rest[0] == "-c":
        sys.path[:] = ["", *added, *base]
        sys.argv[0] = "-c"
        return compile(rest[1], "<string>", "exec")
    if rest[0] == "-m":
        sys.path[:] = [str(Path.cwd()), *added, *base]
        return compile(f"import runpy; runpy._run_module_as_main({rest[1]!r})", "<run>", "exec")
    sys.path[:] = [str(Path(rest[0]).resolve().parent), *added, *base]
    main["__file__"] = str(Path(rest[0]).absolute())
    return compile(Path(rest[0]).read_text(), main["__file__"], "exec")
