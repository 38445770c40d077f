"""Reads the fenced blocks of a page, and the comments that control their execution.

A block is executed, or is output, or is not run here for a listed reason:

``python``         executed; the blocks of a page share their names, in order
``console``        lines with ``$`` are executed, those below are their output (... is any text)
``sh``             executed as a whole
``cpp``, ``c++``   only with a file name or a reason
``text``           output; directly after a python block, the output of that block

Comments before a block:

``<!-- file: NAME -->``                the block is written to a file, which later blocks use
``<!-- test: REASON -->``              the block is not run; Python is still compiled
``<!-- needs: MODULE -->``              the block is skipped if the module is not installed
``<!-- setup ... -->``                 Python that runs before the block
``<!-- ranks: 2 -->``                  this many threads execute it, each with separate names: rank,
                                       nranks, comm, stream
``<!-- status: 1 -->``                 the exit status of the commands
``<!-- page: run by tests/... -->``    all blocks of the page belong to another test
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["REASONS", "Block", "Page", "read"]

# Why a block is not run; "run by" is followed by the file of the test that does it.
REASONS = (
    "needs a GPU",
    "needs the network",
    "takes minutes",
    "installs software",
    "needs several machines",
    "run by",
)
_EXECUTED = ("python", "console", "sh")
_SOURCES = ("cpp", "c++", "cuda", "c", "make", "json", "toml", "yaml", "xml")
_MARKS = ("file", "test", "needs", "setup", "ranks", "status", "page")
_CODE = ("{code-block}", "{code}", "{doctest}", "{testcode}")  # unknown directives
_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")


@dataclass
class Block:
    """A fenced block.

    Attributes:
        kind: the info string.
        text: the text between the fences.
        line: the number of the first line of the text, from 1.
        marks: the comments before it.
        prints: its documented output: the text of an output block directly after it.
    """

    kind: str
    text: str
    line: int
    marks: dict[str, str] = field(default_factory=dict)
    prints: str | None = None

    @property
    def is_executed(self) -> bool:
        """Whether it runs here, perhaps as a file that another block runs."""
        return not (self.kind == "text" or self.is_directive or "test" in self.marks)

    @property
    def is_directive(self) -> bool:
        """Whether it is a MyST directive, such as a table of contents."""
        return self.kind.startswith("{")

    def faults(self) -> list[str]:
        """The errors in its kind and its marks."""
        found = []
        if self.is_directive:
            return (
                [] if self.kind not in _CODE else [f"line {self.line}: write a fence of its kind"]
            )
        if self.kind not in (*_EXECUTED, *_SOURCES, "text"):
            found.append(f"its kind is {self.kind!r}: write text for output")
        if self.kind in _SOURCES and not self.marks.keys() & {"file", "test"}:
            found.append(f"{self.kind} needs a file name, or a reason not to run it")
        found += [f"unknown mark {name!r}" for name in self.marks.keys() - {*_MARKS}]
        reason = self.marks.get("test")
        if reason is not None and not reason.startswith(REASONS):
            found.append(f"the reason {reason!r} is none of {REASONS}")
        if self.kind == "text" and self.marks:
            found.append("output has no marks")
        return [f"line {self.line}: {fault}" for fault in found]


@dataclass
class Page:
    """A page.

    Attributes:
        path: of the file.
        blocks: in order.
        run_by: the test to which all its blocks belong, or None.
    """

    path: Path
    blocks: list[Block]
    run_by: str | None


def _marks(between: str) -> dict[str, str]:
    """The marks between a block and the text before it."""
    marks = {}
    for comment in _COMMENT.findall(between):
        text = comment.strip()
        name = re.match(r"\w+", text)
        if name is None:
            continue
        marks[name[0]] = (
            text[len(name[0]) :].strip("\n")
            if name[0] == "setup"
            else text[len(name[0]) :].lstrip(":").strip()
        )
    return marks


def _before(lines: list[str]) -> str:
    """The comments at the end of some lines."""
    text = "\n".join(lines).rstrip()
    begin = len(text)
    while text[:begin].rstrip().endswith("-->"):
        begin = text.rindex("<!--", 0, begin)
    return text[begin:]


def read(path: Path) -> Page:
    """Read a page.

    Args:
        path: of a Markdown file.

    Raises:
        ValueError: a fence is not closed.
    """
    lines = path.read_text().splitlines()
    blocks: list[Block] = []
    end = 0  # the line after the last block
    number = 0
    while number < len(lines):
        match = _FENCE.match(lines[number])
        if match is None:
            number += 1
            continue
        close = number + 1
        closing = re.compile(rf"^ *{match['fence'][0]}{{{len(match['fence'])},}} *$")
        while close < len(lines) and not closing.match(lines[close]):
            close += 1
        if close == len(lines):
            raise ValueError(f"{path}:{number + 1}: the fence is not closed")
        indent = len(match["indent"])
        text = "\n".join(line[indent:] for line in lines[number + 1 : close])
        between = lines[end:number]
        kind = match["info"].strip()
        block = Block(kind, text, number + 2, _marks(_before(between)))
        at_once = not any(line.strip() for line in between)
        if kind == "text" and at_once and blocks and blocks[-1].kind == "python":
            blocks[-1].prints = text
        blocks.append(block)
        end = number = close + 1
    page_marks = _marks("\n".join(f"<!--{text}-->" for text in _COMMENT.findall(path.read_text())))
    run_by = page_marks.get("page", "").removeprefix("run by ") or None
    return Page(path, blocks, run_by)
