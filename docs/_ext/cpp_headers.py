"""The directive ``cpp-header``: the public declarations of a header with their comments.

The headers say what is public by their form: comments before a declaration or behind it, private
parts below ``private:``, and internals in ``namespace detail``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sphinx.util.docutils import SphinxDirective

_ROOT = Path(__file__).parents[2]
_WORDS = r"\b(inline|constexpr|explicit|PYNCCL_DEVICE|virtual)\b ?|\[\[\w+\]\] ?"
_SKIPPED = (
    "__attribute__",
    "using ",
    "static_assert",
    "friend",
    "template <>",
    "extern ",
    "#",
    "namespace ",
)


@dataclass
class _Item:
    """A declaration, its comment, and what is inside it."""

    kind: str  # function, class, enum, member, macro
    code: str
    comment: list[str]
    members: list[_Item] = field(default_factory=list)


class _Reader:
    """Reads the declarations of a header, line by line."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.at = 0
        self.head: list[str] = []
        while self.lines[self.at].startswith("//"):
            self.head.append(_uncomment(self.lines[self.at]))
            self.at += 1

    def items(self, scope: str = "") -> list[_Item]:
        """What is declared until the scope ends."""
        found: list[_Item] = []
        comment: list[str] = []
        public = True
        joined = False  # directly below another declaration, whose comment is for both
        while self.at < len(self.lines):
            line = self.lines[self.at]
            text = line.strip()
            if text.startswith("//"):
                comment.append(_uncomment(text))
                self.at += 1
                continue
            if not text:
                comment = []
                joined = False
            elif text in ("public:", "private:"):
                public = text == "public:"
                comment = []
            elif scope and re.match(r"\s*\};?", line) and text.startswith("}"):
                self.at += 1
                return found
            elif text.startswith(("namespace detail", "template <>", "namespace pybind11")):
                self._skip_block()
                continue
            elif text.startswith("static_assert"):
                self._skip_statement()
                continue
            elif text.startswith("#define PYNCCL_") and comment:
                if macro := re.match(r"#define (PYNCCL_\w+(?:\([^)]*\))?)", text):
                    found.append(_Item("macro", macro[1], comment))
                self._skip_macro()
                comment = []
                continue
            elif (
                not text.startswith(_SKIPPED)
                and text not in ("}", "};")
                and not text.startswith("} ")
            ):
                item = self._declaration(comment, scope or ("joined" if joined else ""))
                comment = []
                joined = item is not None
                if item is not None and public:
                    found.append(item)
                continue
            self.at += 1
        return found

    def _skip_statement(self) -> None:
        while not self.lines[self.at].rstrip().endswith(";"):
            self.at += 1
        self.at += 1

    def _skip_macro(self) -> None:
        while self.lines[self.at].endswith("\\"):
            self.at += 1
        self.at += 1

    def _skip_block(self) -> None:
        """Go behind the block that begins in this line or in a later one."""
        depth = 0
        while self.at < len(self.lines):
            code = re.sub(r"//.*|\"[^\"]*\"", "", self.lines[self.at])
            depth += code.count("{") - code.count("}")
            opened = "{" in code
            self.at += 1
            if depth <= 0 and (opened or "}" in code):
                return

    def _declaration(self, comment: list[str], scope: str) -> _Item | None:
        start, code, behind = self.at, "", ""
        while True:
            line, _, note = self.lines[self.at].partition("//")
            behind = note.strip() or behind
            code += " " + line.strip()
            if re.search(r"[{;]", code) and code.count("(") == code.count(")"):
                break
            self.at += 1
            if self.at >= len(self.lines) or self.at - start > 40:
                self.at = start + 1  # it was no declaration
                return None
        text = comment or ([behind] if behind else [])
        kind = re.match(r"\s*(?:template <[^>]*> )?(class|struct|enum)\b[^(;]*\{", code)
        if kind:
            item = _Item("enum" if kind[1] == "enum" else "class", code.split("{")[0], text)
            self.at += 1
            if item.kind == "enum":
                self.at = start
                self._skip_block()
                item.members = _enumerators(self.lines[start : self.at])
            else:
                item.members = self.items(item.code.split()[-1])
            return item
        plain = re.sub(r"^\s*template <[^>]*>", "", code).replace("operator=", "")
        is_function = "(" in plain and not re.match(r"[^(]*=", plain)
        if "{" in code:
            self.at = start
            self._skip_block()
        else:
            self.at += 1
        if "= delete" in code or (not text and not scope):
            return None
        shown = _signature(code) if is_function else plain.split(";")[0].split("=")[0]
        shown = re.sub(_WORDS, "", shown).strip()
        if not shown or ("[" in shown and not is_function):
            return None
        if is_function and not text and re.match(rf"~?{re.escape(scope)}\(", shown.split(" ")[-1]):
            return None
        return _Item("function" if is_function else "member", shown, text)


def _uncomment(line: str) -> str:
    return re.sub(r"^\s*// ?", "", line)


def _signature(code: str) -> str:
    """A declaration without its body and its initialisers."""
    depth = 0
    for i, character in enumerate(code):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and character in "{;":
            return code[:i]
        if depth == 0 and character == ":" and code[i - 1] == " " and ")" in code[:i]:
            return code[:i]
    return code


def _enumerators(lines: list[str]) -> list[_Item]:
    found = []
    for line in lines[1:]:
        if named := re.match(r"\s*(\w+) = [^,]*,\s*(?://\s*(.*))?", line):
            found.append(_Item("enumerator", named[1], [named[2]] if named[2] else []))
    return found


def _paragraphs(comment: list[str]) -> list[str]:
    """A comment as reStructuredText: its indented lines are descriptions or code."""
    lines: list[str] = []
    for i, line in enumerate(comment):
        code = line.startswith("    ")
        starts_code = code and (i == 0 or not comment[i - 1].startswith("    "))
        if starts_code:
            lines += ["", ".. code-block:: cpp", ""]
        elif line.startswith("  ") and not code:
            if i and not comment[i - 1].startswith("  "):
                lines.append("")
            line = line[2:]
        elif i and not code and comment[i - 1].startswith("  "):
            lines.append("")
        if not code:
            line = re.sub(r"`([^`]+)`", r"``\1``", line)
            line = re.sub(r"(?<![`\w])(\w+_|\*\w+|\w+\*)(?![\w`])", r"``\1``", line)
            line = line.replace("|", r"\|")
        lines.append(line)
    return lines


class CppHeader(SphinxDirective):
    """``.. cpp-header:: csrc/extension/pynccl.h``: its head, and what it declares.

    ``:namespace:`` is that of the names, ``:no-head:`` leaves the head out.
    """

    required_arguments = 1
    option_spec = {"namespace": str, "no-head": lambda _: True}  # noqa: RUF012 - docutils' form

    def run(self) -> list[Any]:
        """Write the declarations as directives of the C++ domain, and parse them."""
        path = _ROOT / self.arguments[0]
        self.env.note_dependency(str(path))
        reader = _Reader(path.read_text())
        items = reader.items()
        lines = [] if "no-head" in self.options else [*_paragraphs(reader.head), ""]
        namespace = self.options.get("namespace")
        lines += [f".. cpp:namespace:: {namespace or 'NULL'}", ""]
        for item in items:
            lines += _directive(item)
        lines += [".. cpp:namespace:: NULL", ""]
        return self.parse_text_to_nodes("\n".join(lines))


def _directive(item: _Item, indent: str = "") -> list[str]:
    name = {"macro": "c:macro"}.get(item.kind, f"cpp:{item.kind}")
    code = item.code
    if item.kind in ("class", "enum"):
        name = "cpp:struct" if "struct " in code else name
        code = re.sub(r"\b(class|struct|enum) ", "", code)
    lines = [f"{indent}.. {name}:: {' '.join(code.split())}", ""]
    lines += [f"{indent}   {line}".rstrip() for line in _paragraphs(item.comment)]
    lines.append("")
    for member in item.members:
        lines += _directive(member, indent + "   ")
    return lines


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("cpp-header", CppHeader)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
