"""The directive ``command-help``: what a command says of itself, and what its subcommands say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


def _help(module: str, arguments: list[str]) -> str:
    env = {**os.environ, "COLUMNS": "96", "NO_COLOR": "1"}
    command = [sys.executable, "-m", module, *arguments, "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def _helps(module: str, arguments: list[str]) -> Iterator[tuple[list[str], str]]:
    """The texts of a command and of its subcommands, by their arguments."""
    text = _help(module, arguments)
    yield arguments, text
    if found := re.search(r"\{([\w,-]+)\}\s+\.\.\.", text):
        for name in found[1].split(","):
            yield from _helps(module, [*arguments, name])


class CommandHelp(SphinxDirective):
    """``.. command-help:: pynccl``: of ``python -m pynccl``."""

    required_arguments = 1

    def run(self) -> list[Any]:
        """Run the command with ``--help``, and so its subcommands."""
        made: list[Any] = []
        for arguments, text in _helps(self.arguments[0], []):
            program = re.match(r"usage: (.*?) (?:\[|\{|$)", text, re.MULTILINE)
            title = program[1] if program else " ".join([self.arguments[0], *arguments])
            section = nodes.section(ids=[nodes.make_id(title)], names=[title])
            section += nodes.title("", "", nodes.literal(title, title))
            section += nodes.literal_block(text, text, language="text")
            made.append(section)
        return made


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
