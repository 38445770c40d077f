"""The Python reference: signatures of the extension module, and docstrings as reStructuredText.

Docstrings are plain text that is read in a terminal. Here indented code in them becomes a code
block, functions of nccl.h link to their method of pynccl.raw, and names of torch to torch's page.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import itertools
import re
import textwrap
import types
from pathlib import Path
from typing import Any

from sphinx import addnodes

_ROOT = Path(__file__).parents[2]
_NVIDIA = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api"
# The page of NVIDIA's user guide on a function, by the beginning of its name.
_PAGES = {
    "colls": r"(AllReduce|Broadcast|Bcast|Reduce|AllGather|ReduceScatter|AlltoAll|Gather|Scatter)"
    r"(Config)?$",
    "group": r"Group",
    "ops": r"RedOp",
    "p2p": r"(Send|Recv|PutSignal|Signal|WaitSignal)$",
    "device_cft": r"TeamCft|Get\w*LeInfo",
    "device_setup": r"DevComm|CommQueryProperties|Get\w*DevicePointer",
    "comms": r"Comm|Mem|Get(Version|UniqueId|ErrorString|LastError)",
}

# --- signatures

# The type aliases of the stub, as the reference names them.
_ALIASES = {
    "SupportsIndex": "int",
    "_Tensor": "TensorLike",
    "_Stream": "StreamLike",
    "_Op": "OpLike",
    "_OnTimeout": "str | Callable[[Communicator, NcclError], object]",
    "_Id": "bytes",
    "Store": "pynccl.store.Store",
}


def _text(code: str) -> str:
    code = re.sub(r"\bmirror_\w+\.", "", code)
    pattern = rf"(?<![\w.])({'|'.join(_ALIASES)})(?!\w)"
    return re.sub(pattern, lambda found: _ALIASES[found[1]], code)


@functools.cache
def _stub() -> dict[str, ast.FunctionDef]:
    """The functions and methods of pynccl._C by their qualified names."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse((_ROOT / "pynccl" / "_C.pyi").read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef):
                found[f"{prefix}{member.name}"] = member
        # Of Config: a keyword for each attribute.
        fields = [
            ast.unparse(one) for one in members if isinstance(one, ast.AnnAssign) and one.value
        ]
        if prefix and fields:
            made = ast.parse(f"def made(self, *, {', '.join(fields)}): ...").body[0]
            assert isinstance(made, ast.FunctionDef)
            found[f"{prefix}__init__"] = made
    return found


def _of_kernel(obj: Any) -> str | None:
    """The parameters of a function that Triton or Numba compiles."""
    source = getattr(obj, "_defn", None)
    skipped = 1 if source is not None else 0  # Numba's typing context
    if source is None and type(obj).__name__ == "JITFunction":
        source = obj.fn
    if source is None:
        return None
    names = list(inspect.signature(source).parameters.values())[skipped:]
    shown = [
        one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in names
    ]
    return f"({', '.join(shown)})"


def _signature(
    app: Any, what: str, name: str, obj: Any, options: Any, args: str | None, result: str | None
) -> tuple[str, str | None] | None:
    """The signature in the stub of a function, method or class of the extension module."""
    if kernel := _of_kernel(obj):
        return kernel, None
    if what in ("attribute", "property"):
        return None
    if what in ("class", "exception"):
        cls = next((one for one in obj.__mro__ if "__init__" in vars(one)), object)
        node = _stub().get(f"{cls.__name__}.__init__") if cls.__module__ == "pynccl._C" else None
    else:
        # The qualified names of pybind11's functions are not those of their classes.
        node = _stub().get(".".join(name.split(".")[-1 - (what == "method") :]))
    if node is None or isinstance(obj, types.FunctionType) or hasattr(obj, "__wrapped__"):
        return None
    arguments = copy.deepcopy(node.args)
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg == "self":
            del group[0]
            break
    returned = ast.unparse(node.returns) if node.returns and what != "class" else ""
    return f"({_text(ast.unparse(arguments).removeprefix('/, '))})", _text(returned) or None


def _prepare(app: Any) -> None:
    """Autodoc asks for the signature of a class only if it finds one: set one on those of C++."""
    from pynccl import _C

    for name in _stub():
        cls, _, method = name.partition(".")
        if method == "__init__":
            vars_of = vars(getattr(_C, cls))
            if "__signature__" not in vars_of and "__init__" in vars_of:
                getattr(_C, cls).__signature__ = inspect.Signature()


# The modules of classes whose name several modules have.
_MODULES = {"Communicator": "pynccl.nccl", "Report": "pynccl.weights"}


def _qualify(app: Any, doctree: Any) -> None:
    """Types without their module are those of _MODULES, except in modules that have their own."""
    for node in doctree.findall(addnodes.pending_xref):
        own = str(node.get("py:module")).startswith(("pynccl.tools.trace", "pynccl.flight"))
        if (module := _MODULES.get(node["reftarget"])) and not own:
            node["reftarget"] = f"{module}.{node['reftarget']}"


def _resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Links the classes of the extension module, whose pages are those of other modules."""
    domain = env.get_domain("py")
    name = node["reftarget"].rpartition(".")[2]
    for module in ("pynccl.nccl", "pynccl", "pynccl.raw") if node.get("refdomain") == "py" else ():
        if (full := f"{module}.{name}") in domain.objects:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", full, node, content)
    return None


# --- docstrings


def _declaration(name: str, lines: list[str]) -> list[str]:
    """A method of raw.Library: C's declaration, and where NVIDIA describes the function."""
    declared, *rest = [line for line in lines if line]
    found = (page for page, names in _PAGES.items() if re.match(names, name.removeprefix("nccl")))
    page = next((f"{_NVIDIA}/{page}.html#c.{name}" for page in found), f"{_NVIDIA}.html")
    code = textwrap.wrap(declared, 72, initial_indent="    ", subsequent_indent="        ")
    return ["::", "", *code, "", *rest, f"`NVIDIA's description <{page}>`__", ""]


# The texts of attributes, of which napoleon would take what is before a colon for the type.
_texts: dict[str, list[str]] = {}


def _before(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon: removes pybind11's signature, and marks code blocks."""
    last = name.rpartition(".")[2]
    if lines and re.match(rf"{last}\(.*\)( -> .*)?$", lines[0]):
        del lines[0]
        while lines and not lines[0].strip():
            del lines[0]
    if name.startswith("pynccl.raw.Library.nccl"):
        lines[:] = _declaration(last, lines)
    for i in range(len(lines) - 1, 0, -1):
        starts = lines[i].startswith("    ") and not lines[i - 1].strip()
        before = next((line for line in reversed(lines[: i - 1]) if line.strip()), "")
        if starts and not before.startswith(" ") and not before.endswith("::"):
            lines[i:i] = ["::", ""]
    if what in ("attribute", "property", "data"):
        _texts[name] = list(lines)


_NAMES = re.compile(
    r"(?P<skip>``.*?``|:[\w:+-]+:`[^`]*`|`[^`]*`_*|^\s*:\w[^:`\n]*:)"
    r"|(?<![\w.`])(?P<nccl>nccl[A-Z]\w+)(?:\(\))?(?![\w`])"
    r"|(?<![\w.`])(?P<torch>torch\.distributed\.[\w.]*\w)"
    r"|(?<![\w`:])(?P<under>\w+_(?:\(\))?)(?![\w`(*])",
    re.DOTALL | re.MULTILINE,
)


def _marked(found: re.Match[str]) -> str:
    """A name as markup."""
    name = found["nccl"]
    if name and f"Library.{name}" in _stub():
        return f":py:meth:`{name} <pynccl.raw.Library.{name}>`"
    if found["torch"]:
        return f":torch:`{found['torch']}`"
    return f"``{found['under']}``" if found["under"] else found[0]


def _after(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """After napoleon: names become links, except in code blocks."""
    if name in _texts:
        lines[:] = _texts.pop(name)
    is_code: list[bool] = []
    block: int | None = None  # the indentation of the line that begins a code block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        is_code.append(block is not None)
        if block is None and line.rstrip().endswith("::") and not line.lstrip().startswith(".. "):
            block = indent
    marked: list[str] = []
    for code, group in itertools.groupby(zip(is_code, lines, strict=True), lambda pair: pair[0]):
        text = "\n".join(line for _, line in group)
        marked += (text if code else _NAMES.sub(_marked, text)).split("\n")
    lines[:] = marked


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of named tuples are described by their class."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Any) -> dict[str, Any]:
    """Register everything."""
    app.connect("builder-inited", _prepare)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _before, priority=400)
    app.connect("autodoc-process-docstring", _after, priority=600)
    app.connect("doctree-read", _qualify)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
