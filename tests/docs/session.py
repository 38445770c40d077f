"""Runs the blocks of one page in order: python -m tests.docs.session PAGE SECONDS, in its folder.

It stops at the first block that fails, and prints its location and error to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import os
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.docs.blocks import Block, read
from tests.support.commands import run_command


class BlockError(AssertionError):
    """A block did not behave as documented."""


def _agrees(expected: str, printed: str) -> bool:
    """Whether the output is the documented one, in which ... stands for any text.

    Whitespace counts as one space, because columns depend on their values and pages break long
    lines.
    """
    wanted, got = (" ".join(text.split()) for text in (expected, printed))
    pattern = ".*?".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, got) is not None


def _compare(expected: str, printed: str, of: str) -> None:
    if not _agrees(expected, printed):
        raise BlockError(f"{of} printed\n{printed}\nand the page says\n{expected}")


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with its documented output.

    Args:
        text: the text of the block. A command begins with ``$ `` and continues after a backslash.
    """
    found: list[tuple[str, str]] = []
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif not found:
            raise BlockError(f"a console block begins with '$ ', not with {line!r}")
        elif goes_on:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        goes_on = line.endswith("\\") and not found[-1][1]
    return found


class Session:
    """The names of the page's Python, for each rank too, and its time limit.

    Args:
        page: the file, for tracebacks.
        seconds: for the whole page.
    """

    def __init__(self, page: Path, seconds: float) -> None:
        self._page = page
        self._deadline = time.monotonic() + seconds
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._of_ranks: list[dict[str, Any]] = []

    def run(self, block: Block) -> None:
        """Run a block.

        Args:
            block: one that is to be executed.

        Raises:
            Exception: what the block raises, or BlockError.
        """
        if "setup" in block.marks:
            line = block.line - block.marks["setup"].count("\n") - 2
            self._execute(block.marks["setup"], line, block)
        if "file" in block.marks:
            path = Path(block.marks["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n")
        elif block.kind == "python":
            printed = self._execute(block.text, block.line, block)
            if block.prints is not None:
                _compare(block.prints, printed, "it")
        elif block.kind == "sh":
            self._shell(block.text, block)
        else:
            for command, expected in commands(block.text):
                printed = self._shell(command, block)
                if expected.strip():
                    _compare(expected, printed, command)

    def _shell(self, command: str, block: Block) -> str:
        left = self._deadline - time.monotonic()
        end = run_command(
            ["bash", "-euo", "pipefail", "-c", command], Path.cwd(), os.environ, max(left, 1)
        )
        if end.returncode != int(block.marks.get("status", "0")):
            raise BlockError(
                f"{command}\nended with status {end.returncode}\n{end.stdout}{end.stderr}"
            )
        return end.stdout

    def _execute(self, code: str, line: int, block: Block) -> str:
        """Execute Python, on ranks if the block requests them; return the output."""
        # With the page's line numbers, but the block alone: what reads the source of a function, as
        # Triton does, cannot read Markdown.
        source, name = "\n" * (line - 1) + code + "\n", f"{self._page}:{line}"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        compiled = compile(source, name, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if "ranks" in block.marks:
                self._on_ranks(compiled, int(block.marks["ranks"]))
            else:
                exec(compiled, self._names)
        return printed.getvalue()

    def _on_ranks(self, compiled: Any, nranks: int) -> None:  # noqa: ANN401 - a code object
        from pynccl import nccl

        if not self._of_ranks:
            self._unique_id = nccl.get_unique_id("host")
            self._of_ranks = [{"rank": rank, "nranks": nranks} for rank in range(nranks)]
        errors: list[BaseException] = []

        def work(names: dict[str, Any]) -> None:
            try:
                if "comm" not in names:
                    names["comm"] = nccl.Communicator(
                        nranks, self._unique_id, names["rank"], provider="host"
                    )
                    names["stream"] = nccl.Stream("host")
                exec(compiled, names)
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=work, args=(names,), daemon=True) for names in self._of_ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not errors:
                thread.join(0.05)
        if errors:
            raise errors[0]


def main() -> int:
    """Run the page of the command line; returns the exit status."""
    path, seconds = Path(sys.argv[1]), float(sys.argv[2])
    sys.argv = [""]
    session = Session(path, seconds)
    for block in read(path).blocks:
        module = block.marks.get("needs")
        if not block.is_executed or (module and importlib.util.find_spec(module) is None):
            continue
        begin = time.monotonic()
        try:
            session.run(block)
        except BaseException:
            where = f"{path}:{block.line}"
            print(f"{where}: this block fails\n{traceback.format_exc()}", file=sys.stderr)
            sys.stderr.flush()
            return 1
        print(f"{time.monotonic() - begin:6.2f} s  {path.name}:{block.line}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at once, also where threads of a failed block still wait
