"""What the docstrings of public names lack: parameters, the result, errors that are raised."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STUB = Path(__file__).parents[2] / "pynccl" / "_C.pyi"
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Environment", "Prints")
_PARAMETER = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:", re.MULTILINE)


def sections(doc: str) -> dict[str, str]:
    """The sections of a docstring by their titles, each without its indentation."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in inspect.cleandoc(doc).splitlines():
        title = line.rstrip(":")
        if line.endswith(":") and title in _SECTIONS:
            current = found.setdefault(title, [])
        elif current is not None and (not line or line.startswith(" ")):
            current.append(line)
        else:
            current = None
    return {title: textwrap.dedent("\n".join(lines)) for title, lines in found.items()}


def described(section: str) -> set[str]:
    """The parameters that a section Args or Attributes describes."""
    return {
        name.strip().lstrip("*")
        for names in _PARAMETER.findall(section)
        for name in names.split(",")
    }


@functools.cache
def _stub() -> dict[str, ast.FunctionDef]:
    """The functions and methods of pynccl._C by their qualified names."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse(_STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    found.setdefault(f"{node.name}.{member.name}", member)
    return found


def parameters_in_stub(name: str) -> list[str]:
    """The parameters of a function or method of pynccl._C, as its stub has them."""
    return _of_definition(_stub()[name], raises=False).parameters


@dataclasses.dataclass
class _Function:
    parameters: list[str]
    returns: bool
    raises: bool


def _of_definition(node: ast.FunctionDef | ast.AsyncFunctionDef, *, raises: bool) -> _Function:
    arguments = node.args
    parameters = [
        argument.arg
        for argument in (
            *arguments.posonlyargs,
            *arguments.args,
            *([arguments.vararg] if arguments.vararg else []),
            *arguments.kwonlyargs,
            *([arguments.kwarg] if arguments.kwarg else []),
        )
    ]
    result = ast.unparse(node.returns) if node.returns else "None"
    kernel = any(ast.unparse(one) == "intrinsic" for one in node.decorator_list)
    if kernel:
        del parameters[0]  # Numba's own; the result is that of the compiler
    return _Function(
        [name for name in parameters if name not in ("self", "cls") and name[0] != "_"],
        result not in ("None", "NoReturn", "Literal[False]") and not kernel,
        raises,
    )


def _raises(node: ast.AST) -> bool:
    """Whether a function raises by itself: its own statements, not those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and child.exc is not None:
            return True
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef) and _raises(child):
            return True
    return False


def _function(value: Any) -> _Function | None:  # noqa: ANN401 - any public name
    """What a function's docstring must describe; None where its source is not known."""
    value = inspect.unwrap(value)
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
        node = tree.body[0]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef), value
        return _of_definition(node, raises=_raises(node))
    name = getattr(value, "__qualname__", "")
    node_of_stub = _stub().get(name)
    if node_of_stub is None:
        return None
    made = _of_definition(node_of_stub, raises=False)
    made.raises = bool(made.parameters)
    return made


def _lacks(name: str, doc: str, wanted: _Function, *, of_class: bool = False) -> Iterator[str]:
    if not doc.strip():
        yield f"{name}: no docstring"
        return
    found = sections(doc)
    names = described(found.get("Args", ""))
    if of_class:
        names |= described(found.get("Attributes", ""))
    for parameter in wanted.parameters:
        if parameter not in names:
            yield f"{name}: Args has no {parameter}"
    for extra in described(found.get("Args", "")) - set(wanted.parameters):
        yield f"{name}: Args has {extra}, which is no parameter"
    if wanted.returns and not of_class and not {"Returns", "Yields"} & found.keys():
        yield f"{name}: no Returns"
    if wanted.raises and "Raises" not in found:
        yield f"{name}: no Raises"


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public members of a class that pynccl defines, in itself or in a base class.

    BaseGroup is the mirror's own part of a process group.
    """
    for name in dir(cls):
        if name.startswith("_"):
            continue
        base = next(one for one in cls.__mro__ if name in vars(one))
        if (base.__module__ or "").startswith("pynccl") and base.__name__ != "BaseGroup":
            yield name, vars(base)[name]


def _constructor(cls: type) -> _Function | None:
    """What the docstring of a class must describe of its constructor."""
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
        return _Function([name for name in names if name[0] != "_"], False, False)
    if hasattr(cls, "_fields"):
        return _Function(list(cls._fields), False, False)
    if issubclass(cls, BaseException | enum.Enum) or getattr(cls, "_is_protocol", False):
        return None
    init = next((vars(one)["__init__"] for one in cls.__mro__ if "__init__" in vars(one)), None)
    return None if init is None or init is object.__init__ else _function(init)


def _of_class(name: str, cls: type) -> Iterator[str]:
    doc = inspect.getdoc(cls) or ""
    wanted = _constructor(cls)
    if not doc or wanted is None:
        yield from () if doc else (f"{name}: no docstring",)
    else:
        yield from _lacks(name, doc, wanted, of_class=True)
    if issubclass(cls, enum.Enum):
        return
    found = sections(doc)
    described_here = described(found.get("Args", "")) | described(found.get("Attributes", ""))
    for member, value in _members(cls):
        if callable(value) or isinstance(value, staticmethod | classmethod):
            yield from of_value(f"{name}.{member}", value)
        elif not inspect.getdoc(value) and member not in described_here:
            yield f"{name}.{member}: no docstring"


def of_value(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - any public name
    """What the docstring of a name and those of its members lack, as lines of text.

    Names that are torch's own are torch's to describe.
    """
    if (getattr(value, "__module__", None) or "").startswith("torch"):
        return
    if isinstance(value, type):
        yield from _of_class(name, value)
    elif isinstance(value, types.ModuleType):
        if not value.__doc__:
            yield f"{name}: no docstring"
    elif callable(value) or isinstance(value, staticmethod | classmethod):
        wanted = _function(value)
        doc = inspect.getdoc(value) or ""
        if wanted is None:
            if not doc:
                yield f"{name}: no docstring"
        else:
            yield from _lacks(name, doc, wanted)


def of_module(module: str) -> list[str]:
    """What the docstrings of the public names of a module lack."""
    found = importlib.import_module(module)
    return [
        line
        for name in found.__all__
        for line in of_value(f"{module}.{name}", getattr(found, name))
    ]
