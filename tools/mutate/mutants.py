"""Finds the possible changes of a source file.

C++ is changed by its text, where clang-format puts spaces around operators and none around template
arguments. Python is changed by its syntax tree.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "mutants"]

_SWAPPED = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "&&": "||",
    "||": "&&",
    "and": "or",
    "or": "and",
    "+": "-",
    "-": "+",
    "+=": "-=",
    "-=": "+=",
    "++": "--",
    "--": "++",
    "true": "false",
    "false": "true",
    "True": "False",
    "False": "True",
}
_OPERATOR = re.compile(r" (==|!=|<=|>=|<|>|&&|\|\||\+=|-=|\+|-) ")
_STEP = re.compile(r"(\+\+|--)(?=\w)")
_RETURN = re.compile(r"\breturn (true|false);")
_IF = re.compile(r"\bif (constexpr )?\(")
# A statement that is a call on its own line, which can be removed.
_STATEMENT = re.compile(
    r"^ +(?!return|throw|delete|co_|static_assert)[\w:.>()-]+\(.*\);$", re.MULTILINE
)
_PAUSE = re.compile(r"without `(sleep_on|std::this_thread::sleep_for|time\.sleep|poll|pause)\(")
_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n\\]|\\.)*|R"\((?:.*?)\)"|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)+'|\btemplate <[^\n]*",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Mutant:
    """One change of a file.

    Attributes:
        file: the path relative to the repository root.
        line: the line number, from 1.
        begin: the start of the replaced text in the file.
        end: the end of the replaced text.
        new: the replacement.
        text: a description of the change.
    """

    file: str
    line: int
    begin: int
    end: int
    new: str
    text: str

    def apply(self, source: str) -> str:
        """Return the source with the change."""
        return source[: self.begin] + self.new + source[self.end :]

    def drops_pause(self) -> bool:
        """Whether it leaves out a call that only sleeps."""
        return bool(_PAUSE.match(self.text))


def mutants(file: str, source: str) -> list[Mutant]:
    """All changes of a file, in the order of their positions."""
    find = _python if Path(file).suffix == ".py" else _cpp
    found = []
    for begin, end, new in find(source):
        line = source.count("\n", 0, begin) + 1
        old = " ".join(source[begin:end].split())
        text = f"`{old}` is `{' '.join(new.split())}`" if new.strip(" ;") else f"without `{old}`"
        if new == "pass":
            text = f"without `{old}`"
        elif len(old) < 6:
            whole = source.splitlines()[line - 1].strip()
            text = f"{text} in `{whole}`"
        found.append(Mutant(file, line, begin, end, new, text))
    return sorted(found, key=lambda one: (one.begin, one.end))


def _cpp(source: str) -> Iterator[tuple[int, int, str]]:
    # The same positions, with blanks in place of all but code.
    code = _NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    for found in _OPERATOR.finditer(code):
        texts = source[: found.start()].endswith('"') or source[found.end() :].startswith('"')
        if not texts:  # string literals, which only concatenate
            yield found.start(1), found.end(1), _SWAPPED[found[1]]
    for found in _STEP.finditer(code):
        yield found.start(1), found.end(1), _SWAPPED[found[1]]
    for found in _RETURN.finditer(code):
        yield found.start(1), found.end(1), _SWAPPED[found[1]]
    for found in _IF.finditer(code):
        begin = found.end()
        end = _closing(code, begin)
        condition = source[begin:end]
        if ";" in condition:  # has an initialization, which is kept
            begin += condition.rindex(";") + 1
            condition = source[begin:end]
        declares = re.search(r"(?<![=!<>])=(?!=)", condition)
        if not declares and found[1] is None:
            yield (
                begin,
                end,
                f" !({condition.strip()})" if condition[:1] == " " else f"!({condition})",
            )
    for found in _STATEMENT.finditer(code):
        begin = found.start() + len(found[0]) - len(found[0].lstrip())
        balanced = found[0].count("(") == found[0].count(")")
        if balanced and not re.search(r"(?<![=!<>])=(?!=)", found[0].partition("(")[0]):
            yield begin, found.end(), ";"


def _closing(code: str, place: int) -> int:
    """The position of the parenthesis that closes the one before ``place``."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        place += 1
    return place - 1


def _python(source: str) -> Iterator[tuple[int, int, str]]:
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line.encode()) + 1)
    data = source.encode()

    def place(line: int, column: int) -> int:
        return len(data[: starts[line - 1] + column].decode())

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = place(node.lineno, node.col_offset)
        return begin, place(node.end_lineno, node.end_col_offset)

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare() | ast.BoolOp() | ast.BinOp(op=ast.Add() | ast.Sub()):
                parts = _operands(node)
                for left, right in itertools.pairwise(parts):
                    begin, end = span(left)[1], span(right)[0]
                    found = re.search(r"(==|!=|<=|>=|<|>|\band\b|\bor\b|\+|-)", source[begin:end])
                    if found:
                        yield begin + found.start(1), begin + found.end(1), _SWAPPED[found[1]]
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                pass  # equal at run time
            case ast.If() | ast.IfExp():
                begin, end = span(node.test)
                if not any(isinstance(one, ast.NamedExpr) for one in ast.walk(node.test)):
                    yield begin, end, f"not ({source[begin:end]})"
            case ast.Return(value=ast.Constant(value=bool())):
                assert node.value is not None
                begin, end = span(node.value)
                yield begin, end, _SWAPPED[source[begin:end]]
            case ast.AugAssign(op=ast.Add() | ast.Sub()):
                begin, end = span(node.target)[1], span(node.value)[0]
                found = re.search(r"(\+=|-=)", source[begin:end])
                if found:
                    yield begin + found.start(1), begin + found.end(1), _SWAPPED[found[1]]
            case ast.Expr(value=ast.Call()):
                begin, end = span(node)
                yield begin, end, "pass"


def _operands(node: ast.Compare | ast.BoolOp | ast.BinOp) -> list[ast.expr]:
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    return node.values if isinstance(node, ast.BoolOp) else [node.left, node.right]
