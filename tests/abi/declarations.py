"""Extracts the names that C text declares: our lists in csrc/abi, nccl.h, and cuda.h.

This is not a C parser. It recognizes the few forms that these files use. The compiler counts the
entries of our lists again (static_checks.py), so an overlooked declaration is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ABI = Path(__file__).resolve().parents[2] / "csrc" / "abi"


@dataclass(frozen=True)
class Entry:
    """An entry of a list: its first arguments, and the names of the parameters that follow."""

    head: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """A function of nccl_functions.inc."""

    since: int
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class DriverFunction:
    """A function of driver_functions.inc. ``symbol`` is its name in libcuda.so.1."""

    symbol: str
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Field:
    """A field of a versioned struct."""

    since: int
    type: str
    name: str


@dataclass(frozen=True)
class Constant:
    """A macro of nccl.h, with its value as C text."""

    since: int
    name: str
    value: str


@dataclass(frozen=True)
class Declarations:
    """The declarations in a C or C++ text.

    Attributes:
        enums: The enumerators of each enum.
        structs: The fields of each struct; those of nested structs as "outer.inner".
        handles: Names of pointers to incomplete structs.
        aliases: Names of all other typedefs and using-declarations.
        constants: Names of constexpr variables.
    """

    enums: dict[str, tuple[str, ...]]
    structs: dict[str, tuple[str, ...]]
    handles: tuple[str, ...]
    aliases: tuple[str, ...]
    constants: tuple[str, ...]


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def without_macros(text: str) -> str:
    """Remove preprocessor directives, including continued lines."""
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.MULTILINE)


def closing(text: str, opening: int) -> int:
    """Return the index of the bracket that closes the bracket at ``opening``."""
    depth = 0
    for index in range(opening, len(text)):
        depth += (text[index] in "({[") - (text[index] in ")}]")
        if depth == 0:
            return index
    raise ValueError(f"no closing bracket for {text[opening : opening + 60]!r}")


def split(text: str, separator: str) -> list[str]:
    """Split at separators outside brackets, and remove empty parts."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "({[") - (char in ")}]")
        if char == separator and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def last_name(declarator: str) -> str:
    """Return the name declared by a text such as "const char* name[8] = value"."""
    names = re.findall(r"\w+", re.sub(r"\[.*|=.*", "", declarator, flags=re.DOTALL))
    if not names or "," in declarator:
        raise ValueError(f"not one declaration: {declarator!r}")
    return str(names[-1])


def entries(path: Path, macro: str) -> list[Entry]:
    """Return the uses of a macro in a list. Parameters have the form KIND(type, name, ...)."""
    text = without_comments(path.read_text())
    found = []
    for match in re.finditer(rf"\b{macro}\(", text):
        arguments = split(text[match.end() : closing(text, match.end() - 1)], ",")
        head = tuple(argument for argument in arguments if not re.match(r"[A-Z]+\(", argument))
        parameters = []
        for argument in arguments[len(head) :]:
            parts = split(argument[argument.index("(") + 1 : -1], ",")
            parameters.append(parts[0] if argument.startswith(("BUFFER", "STRINGS")) else parts[1])
        found.append(Entry(head, tuple(parameters)))
    return found


def nccl_functions(file: str = "nccl_functions.inc") -> list[Function]:
    return [
        Function(int(entry.head[0]), entry.head[2], entry.parameters)
        for entry in entries(ABI / file, "FUNCTION")
    ]


def device_functions() -> list[Function]:
    """Return the host functions of nccl_device/*.h."""
    return nccl_functions("nccl_device_functions.inc")


def driver_functions() -> list[DriverFunction]:
    return [
        DriverFunction(entry.head[0], entry.head[2], entry.parameters)
        for entry in entries(ABI / "driver_functions.inc", "FUNCTION")
    ]


def fields(file: str) -> list[Field]:
    return [
        Field(int(entry.head[0]), entry.head[1], entry.head[2])
        for entry in entries(ABI / file, "FIELD")
    ]


def own(header: str) -> Declarations:
    """Return the declarations in a header of csrc/abi, with the fields in the lists it includes."""

    def listed(included: re.Match[str]) -> str:
        return " ".join(f"{field.type} {field.name};" for field in fields(included[1]))

    text = (ABI / header).read_text()
    return declarations(re.sub(r'#include "(\w+_fields\.inc)"', listed, text))


def constants() -> list[Constant]:
    return [
        Constant(int(entry.head[0]), entry.head[1], entry.head[2])
        for entry in entries(ABI / "constants.inc", "CONSTANT")
    ]


def struct_fields(body: str, prefix: str = "") -> tuple[str, ...]:
    """Return the fields in the body of a struct, in order; nested ones as "outer.inner"."""
    names: list[str] = []
    for statement in split(re.sub(r"(= )?\{\}", "", body), ";"):  # of initializers
        if "{" in statement:
            start = statement.index("{")
            end = closing(statement, start)
            outer = f"{prefix}{last_name(statement[end + 1 :])}."
            names += struct_fields(statement[start + 1 : end], outer)
        else:
            names.append(prefix + last_name(statement))
    return tuple(names)


def declarations(text: str) -> Declarations:
    """Return the declarations in a header, including every branch of conditional parts."""
    text = without_macros(without_comments(text))
    enums: dict[str, tuple[str, ...]] = {}
    structs: dict[str, tuple[str, ...]] = {}
    for match in re.finditer(r"\b(typedef\s+)?(enum|struct)\b([^;{}()]*)\{", text):
        end = closing(text, match.end() - 1)
        body = text[match.end() : end]
        if match[1]:
            name = text[end + 1 : text.index(";", end)].strip()
        else:
            name = match[3].split(":")[0].strip()
        if match[2] == "enum":
            values = (re.match(r"\w+", part) for part in split(body, ","))
            enums[name] = tuple(dict.fromkeys(value[0] for value in values if value))
        elif name:
            structs[name] = struct_fields(body)
    flat = re.sub(r"\{[^{}]*\}", "", text)
    targets = dict(re.findall(r"\busing (\w+) = ([^;]+);", text))
    targets |= {name: what for what, name in re.findall(r"\btypedef ([^;]*?)\b(\w+);", flat)}
    handles = [n for n, what in targets.items() if re.fullmatch(r"(struct )?\w+\s?\*\s*", what)]
    return Declarations(
        enums,
        structs,
        tuple(handles),
        tuple(name for name in targets if name not in {*handles, *enums, *structs}),
        tuple(re.findall(r"\bconstexpr \w[\w: ]* (\w+) =", text)),
    )


def header_functions(text: str) -> dict[str, tuple[str, ...]]:
    """Return the functions in nccl.h, including pnccl*, with the names of their parameters."""
    found = re.findall(r"\b(p?nccl\w+)\s*\(([^()]*)\)", without_macros(without_comments(text)))
    return {
        name: tuple(last_name(part) for part in split(parameters, ",") if part != "void")
        for name, parameters in found
    }


def header_macros(text: str) -> dict[str, str]:
    """Return the object-like macros that a header defines, with their text."""
    found = re.findall(r"^[ \t]*#define[ \t]+(\w+)[ \t]+(.*)$", without_comments(text), flags=re.M)
    return {name: value.strip() for name, value in found}


def header_version(text: str) -> int:
    """Return NCCL_VERSION_CODE."""
    code = header_macros(text).get("NCCL_VERSION_CODE")
    if code is None:
        raise ValueError("the header does not define NCCL_VERSION_CODE")
    return int(code)
