"""The Python reference: signatures with types, docstrings as reStructuredText, links elsewhere.

Docstrings are plain text that is read in a terminal. Here functions of nccl.h and of torch in them
become links, as do pynccl's own names, and indented code becomes a code block.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils import unescape
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

from tools import nccl_reference

_ROOT = Path(__file__).parents[2]
_log = logging.getLogger(__name__)
_TORCH = "https://docs.pytorch.org/docs/stable"
_PYTHON = "https://docs.python.org/3/library"

# --- links to other sites

# The page of a name by its beginning; the longest that fits.
_SITES = {
    "torch.distributed": f"{_TORCH}/distributed.html#{{}}",
    "torch.futures": f"{_TORCH}/futures.html#{{}}",
    "torch.cuda.MemPool": f"{_TORCH}/generated/torch.cuda.memory.MemPool.html",
    "torch.Tensor": f"{_TORCH}/tensors.html#{{}}",
    "torch.dtype": f"{_TORCH}/tensor_attributes.html#{{}}",
    "torch.device": f"{_TORCH}/tensor_attributes.html#{{}}",
    "torch": f"{_TORCH}/torch.html",
    "numpy": "https://numpy.org/doc/stable/reference/generated/{}.html",
    "cupy.cuda.MemoryPool": "https://docs.cupy.dev/en/stable/reference/generated/{}.html",
    "collections.abc": f"{_PYTHON}/collections.abc.html#{{}}",
    "collections": f"{_PYTHON}/collections.html#{{}}",
    "datetime": f"{_PYTHON}/datetime.html#{{}}",
    "ssl": f"{_PYTHON}/ssl.html#{{}}",
    "typing": f"{_PYTHON}/typing.html#{{}}",
    "os": f"{_PYTHON}/os.html#{{}}",
    "pathlib": f"{_PYTHON}/pathlib.html#{{}}",
    "enum": f"{_PYTHON}/enum.html#{{}}",
    "signal": f"{_PYTHON}/signal.html#{{}}",
    "types": f"{_PYTHON}/types.html#{{}}",
}
# Names without their module, as signatures have them.
_MODULES = {
    "Tensor": "torch.Tensor",
    "MemPool": "torch.cuda.MemPool",
    "Callable": "collections.abc.Callable",
    "Iterable": "collections.abc.Iterable",
    "Iterator": "collections.abc.Iterator",
    "Mapping": "collections.abc.Mapping",
    "Sequence": "collections.abc.Sequence",
    "timedelta": "datetime.timedelta",
    "Any": "typing.Any",
    "Literal": "typing.Literal",
    "NamedTuple": "typing.NamedTuple",
    "Protocol": "typing.Protocol",
    "Self": "typing.Self",
    "Path": "pathlib.Path",
    "PathLike": "os.PathLike",
    "TypeIs": "typing.TypeIs",
    "typing_extensions.TypeIs": "typing.TypeIs",
    "IntEnum": "enum.IntEnum",
    "TracebackType": "types.TracebackType",
    "np.void": "numpy.void",
    "np.ndarray": "numpy.ndarray",
    "signal.Signals": "signal.Signals",
}
_BUILTIN_TYPES = {
    *("bool", "bytes", "bytearray", "dict", "float", "frozenset", "int", "list", "memoryview"),
    *("object", "range", "set", "str", "tuple", "type"),
}


def _address(name: str) -> str | None:
    """The page of another site that describes a name."""
    if name == "None":
        return f"{_PYTHON}/constants.html#None"
    if name in _BUILTIN_TYPES:
        page = "functions" if name in ("object", "type", "bool", "int", "float") else "stdtypes"
        return f"{_PYTHON}/{page}.html#{name}"
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return f"{_PYTHON}/exceptions.html#{name}"
    name = _MODULES.get(name, name)
    fits = [begin for begin in _SITES if name == begin or name.startswith(f"{begin}.")]
    return _SITES[max(fits, key=len)].format(name) if fits else None


def _nccl_role(name: str, _raw: str, text: str, *_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
    """``:nccl:`ncclAllReduce```: NVIDIA's description."""
    word = unescape(text)
    address = nccl_reference.page(word)
    literal = nodes.literal(word, word)
    return [nodes.reference("", "", literal, refuri=address) if address else literal], []


def _torch_role(name: str, _raw: str, text: str, *_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
    """``:torch:`torch.distributed.all_reduce```: torch's description."""
    word = unescape(text)
    literal = nodes.literal(word, word)
    return [nodes.reference("", "", literal, refuri=_address(word))], []


def _resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Types of other packages, and pynccl's own without their module."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if address := _address(target):
        return nodes.reference("", "", content, refuri=address, reftitle=target)
    domain = env.get_domain("py")
    short = re.sub(r"^(?:[a-z_]\w*\.)+(?=[A-Z])", "", target.replace("_C.", ""))
    for module in _SEARCHED:
        if (name := f"{module}.{short}") in domain.objects:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)
    if short in _LABELS:
        page, anchor = env.get_domain("std").anonlabels[_LABELS[short]]
        return make_refnode(app.builder, node["refdoc"], page, anchor, content)
    return content if short in _WITHOUT_PAGE or target in _WITHOUT_PAGE else None


_SEARCHED = (
    *("pynccl.nccl", "pynccl", "pynccl.raw", "pynccl.errors", "pynccl.memory", "pynccl.lab"),
    *("pynccl.trace.model", "pynccl.trace.merge", "pynccl.trace.summary", "pynccl.trace.order"),
    *("pynccl.trace.exposure", "pynccl.replay", "pynccl.flight.dump", "pynccl.flight.analysis"),
    *("pynccl.testing", "pynccl.libraries", "pynccl.store", "pynccl.weights", "pynccl.doctor"),
)
# What the introduction of the reference explains.
_LABELS = {
    "TensorLike": "ref-tensors",
    "StreamLike": "ref-streams",
    "DTypeLike": "ref-tensors",
    "OpLike": "ref-operators",
}
# What signatures and texts name, and no page describes: internals and type variables.
_WITHOUT_PAGE = {
    *("T", "_T", "pynccl.mirror.api.objects._T", "CapsuleType", "Peers", "Options", "Process"),
    *("PreHookArgs", "PostHookArgs", "pynccl.device.triton.interpreter"),
    *("pynccl.c10d.build", "Difference", "CommStream", "GroupContext", "Arena"),
}

# --- signatures

_TEXTS = {
    "SupportsIndex": "int",
    "_Tensor": "TensorLike",
    "_Stream": "StreamLike",
    "_Op": "OpLike",
    "_OnTimeout": "str | Callable[[Communicator, NcclError], object]",
    "_Id": "bytes",
    "mirror_process_group.": "",
    "mirror_work.": "",
    "mirror_record.": "",
    "mirror_comm_stream.": "",
    "torch.Tensor": "Tensor",
    "Group": "ProcessGroup | str | None",
    "_T": "T",
    "BackendError": "DistBackendError",
    "_Path": "str | PathLike[str]",
    "Sources": "Mapping[str, Tensor | Shard] | Callable[[], Iterable[tuple[str, Tensor]]]",
    "Gather": "Callable[[], Iterable[tuple[str, Tensor]]]",
    "Metadata": "Mapping[str, Spec | None]",
    "Block": "tuple[int, int] | None",
}


def _text(code: str, name: str = "") -> str:
    """Types and defaults as the reference shows them."""
    code = code.replace("~", "").replace("typing.", "")
    if name.startswith("pynccl.weights"):  # flight has Reports of its own
        code = re.sub(r"(?<![\w.])Report(?!\w)", "pynccl.weights.Report", code)
    code = re.sub(r"<(\w+)\.(\w+): [^>]*>", r"\1.\2", code).replace("RedOpType.", "ReduceOp.")
    code = re.sub(r"<[\w. ]+ at 0x\w+>", "...", code)
    if not name.startswith(
        ("pynccl.trace", "pynccl.flight")
    ):  # they have Communicators of their own
        code = re.sub(r"(?<![\w.])Communicator(?!\w)", "pynccl.nccl.Communicator", code)
    pattern = r"(?<![\w.])(" + "|".join(re.escape(word) for word in _TEXTS) + r")(?!\w)"
    return re.sub(pattern, lambda found: _TEXTS[found[1]], code)


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
) -> tuple[str | None, str | None] | None:
    """The signature of the stub for what is of the extension module."""
    if kernel := _of_kernel(obj):
        return kernel, None
    if what in ("class", "exception"):
        bases = [one for one in obj.__mro__ if "__init__" in vars(one)]
        of_c = bases and bases[0].__module__ == "pynccl._C"
        node = _stub().get(f"{bases[0].__name__}.__init__") if of_c else None
        if node is None:
            return (_text(args, name), None) if args and not of_c else None
    else:
        # The qualified names of pybind11's functions are not those of their classes.
        is_method = what in ("method", "attribute", "property")
        node = _stub().get(".".join(name.split(".")[-1 - is_method :]))
        if node is None or isinstance(obj, types.FunctionType) or hasattr(obj, "__wrapped__"):
            return (_text(args, name), _text(result, name) if result else None) if args else None
    arguments = copy.deepcopy(node.args)
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg == "self":
            del group[0]
            break
    code = ast.unparse(arguments).removeprefix("/, ")
    returned = ast.unparse(node.returns) if node.returns and what != "class" else None
    if what in ("attribute", "property") and args is None:
        return None
    code, returned = _of_store(code), _of_store(returned or "")
    return f"({_text(code, name)})", _text(returned, name) or None


def _of_store(code: str) -> str:
    return re.sub(r"(?<![\w.])Store(?!\w)", "pynccl.store.Store", code)


# --- docstrings


def _before(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon: descriptions that C++ lacks, and code blocks."""
    last = name.rpartition(".")[2]
    if lines and re.match(rf"{last}\(.*\)( -> .*)?$", lines[0]):  # of pybind11
        del lines[0]
        while lines and not lines[0].strip():
            del lines[0]
    if name.startswith("pynccl.raw.Library.nccl"):
        declaration = [line for line in lines if line]
        lines[:] = nccl_reference.function(last).splitlines()
        lines[0] = f"{lines[0][:-1]} ({last})."
        code = textwrap.wrap(declaration[0], 72, subsequent_indent="    ")
        lines[1:1] = ["", *(f"    {line}" for line in code), "", *declaration[1:], ""]
    elif found := re.match(r"pynccl\.(?:raw\.(\w+_t)|nccl\.(Config))\.(\w+)$", name):
        struct = found[1] or "ncclConfig_t"
        field = last if found[1] else nccl_reference.CONFIG_FIELDS.get(last, "")
        if not any(lines) and field in nccl_reference.FIELDS.get(struct, {}):
            lines[:] = [nccl_reference.field(struct, field), ""]
    for i in range(len(lines) - 1, 0, -1):
        starts = lines[i].startswith("    ") and not lines[i - 1].strip()
        before = next((line for line in reversed(lines[: i - 1]) if line.strip()), "")
        if starts and not before.startswith(" ") and not before.endswith("::"):
            lines[i:i] = ["::", ""]
    if what in ("attribute", "property", "data"):
        _texts[name] = list(lines)


# The texts of attributes, of which napoleon would take what is before a colon for the type.
_texts: dict[str, list[str]] = {}


_LINKS = re.compile(
    r"(?P<skip>``.*?``|:[\w:+-]+:`[^`]*`|`[^`]*`_*|^\s*:(?!raises)\w[^:`\n]*:)"
    r"|(?P<raises>^\s*:raises )(?P<types>[^:`]+):"
    r"|(?<![\w.`])(?P<nccl>nccl[A-Z]\w+)(?:\(\))?(?![\w`])"
    r"|(?<![\w.`])(?P<torch>torch\.distributed\.[\w.]*\w)"
    r"|(?<![\w.`])(?P<own>(?:[A-Z]\w+)(?:\.\w+)*)(?P<call>\(\))?(?![\w`(])"
    r"|(?<![\w`:])(?P<under>\w+_(?:\(\))?)(?![\w`(])",
    re.DOTALL | re.MULTILINE,
)


@functools.cache
def _own_names() -> frozenset[str]:
    """Names that need no context to be recognised: NcclError, Config.timeout."""
    from pynccl import nccl

    names = set()
    for name in nccl.__all__:
        value = getattr(nccl, name)
        if isinstance(value, type):
            if re.search(r"[a-z][A-Z]", name):
                names.add(name)
            names.update(f"{name}.{one}" for one in dir(value) if not one.startswith("_"))
    return frozenset(names)


def _link(found: re.Match[str]) -> str:
    if found["raises"]:
        words = (word.strip() for word in found["types"].split(","))
        names = [f"~pynccl.nccl.{word}" if word in _errors() else word for word in words]
        return f"{found['raises']}{', '.join(names)}:"
    if found["nccl"]:
        return f":nccl:`{found['nccl']}`" if nccl_reference.page(found["nccl"]) else found[0]
    if found["torch"]:
        return f":torch:`{found['torch']}`"
    if found["own"] in _own_names():
        return f":py:obj:`~pynccl.nccl.{found['own']}`"
    if found["under"]:
        return f"``{found['under']}``"
    return found[0]


@functools.cache
def _errors() -> frozenset[str]:
    from pynccl import nccl

    return frozenset(name for name in nccl.__all__ if name.endswith("Error"))


def _after(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """After napoleon: names become links; text is not mistaken for markup."""
    if name in _texts:
        lines[:] = _texts.pop(name)
    chunks: list[tuple[bool, list[str]]] = [(False, [])]
    literal: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
            chunks.append((False, []))
        chunks[-1][1].append(line)
        begins = line.rstrip().endswith("::") and not line.lstrip().startswith(".. ")
        if literal is None and begins:
            literal = indent
            chunks.append((True, []))
    made: list[str] = []
    for is_literal, chunk in chunks:
        text = "\n".join(chunk)
        made += (text if is_literal else _LINKS.sub(_link, text)).split("\n") if chunk else []
    lines[:] = made


def _check(app: Any, env: Any) -> None:
    """Every public name of a module that the reference has is described in it."""
    objects = env.get_domain("py").objects
    modules = {name.rpartition(".")[0] for name in objects} & sys.modules.keys()
    for module in sorted(modules):
        for name in getattr(sys.modules[module], "__all__", ()) if "pynccl" in module else ():
            value = getattr(sys.modules[module], name)
            full = f"{module}.{name}"
            other = getattr(sys.modules["pynccl.nccl"], name, None)  # another name of the same
            known = full in objects or (other is value and f"pynccl.nccl.{name}" in objects)
            if not known and module in env.get_domain("py").modules:
                _log.warning("%s is not in the reference (%s)", full, type(value).__name__)


def _prepare(app: Any) -> None:
    """Autodoc asks for a signature only where it finds one: give it one of each class of C++."""
    from pynccl import _C

    for name in _stub():
        cls, _, method = name.partition(".")
        if method == "__init__":
            vars_of = vars(getattr(_C, cls))
            if "__signature__" not in vars_of and "__init__" in vars_of:
                getattr(_C, cls).__signature__ = inspect.Signature()


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of named tuples are described by their class."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Any) -> dict[str, Any]:
    """Register everything."""
    app.connect("autodoc-skip-member", _skip)
    app.connect("builder-inited", _prepare)
    app.add_role("nccl", _nccl_role)
    app.add_role("torch", _torch_role)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _before, priority=400)
    app.connect("autodoc-process-docstring", _after, priority=600)
    app.connect("missing-reference", _resolve)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
