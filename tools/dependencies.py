"""Checks the include graph of csrc and the import graph of pynccl, and prints them by folder.

It also reports starred literals, for which ruff has no rule.

    python -m tools.dependencies    # each folder with the folders it uses

Errors are cycles of units or folders, and uses of a later folder: a folder in ORDERS may use only
the folders before it. The exit status is 1 if there is an error.

A C++ unit is a header with the sources that define its declarations: name.h with name.cpp, and with
each name_more.cpp that has no header of its own. A Python unit is a module. Imports in functions
and under TYPE_CHECKING count. Lazy attributes of a package do not: imports in its __getattr__, and
their declarations under TYPE_CHECKING in an __init__.py.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

__all__ = [
    "ORDERS",
    "cycle",
    "folders",
    "imports",
    "includes",
    "starred_literals",
    "units",
    "wrong_uses",
]

Graph = Mapping[str, set[str]]

_ROOT = Path(__file__).parents[1]

_HOSTNCCL = (
    "kernels",
    "base",
    "segment",
    "rendezvous",
    "communicator",
    "operations",
    "lifecycle",
    "streams",
    "group",
    "api",
)
_PYTHON = ("call", "convert", "raw", "comm", "device", "watch", "collectives", "mirror")
_DIVIDED = ("_internal", "mirror", "tools")  # packages that are divided further
_MIRROR = ("base", "group", "world", "lifecycle", "api")

# A csrc folder, Python module or package may use those before it in one of its orders.
ORDERS = (
    (
        "csrc/common",
        "csrc/abi",
        "csrc/device",
        *(f"csrc/hostnccl/{folder}" for folder in _HOSTNCCL),
    ),
    (
        "csrc/common",
        "csrc/abi",
        "csrc/extension",
        "csrc/nccl",
        "csrc/comm",
        "csrc/watch",
        *(f"csrc/python/{folder}" for folder in _PYTHON),
        "csrc/python",
    ),
    ("csrc/abi", "csrc/noop"),
    ("csrc/common", "csrc/abi", "csrc/plugin"),
    ("csrc/abi", "csrc/extension", "csrc/c10d"),
    ("csrc/device/nvrtc",),
    (*(f"pynccl.mirror.{part}" for part in _MIRROR), "pynccl.mirror"),
)


def includes() -> dict[str, set[str]]:
    """The include graph: each source file of csrc, with the csrc files it includes."""
    csrc = _ROOT / "csrc"
    graph: dict[str, set[str]] = {}
    for path in sorted(csrc.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".inc", ".in"):
            continue
        found = graph[_name(path)] = set()
        for text in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            for folder in (path.parent, csrc):
                if (folder / text).is_file():
                    found.add(_name((folder / text).resolve()))
                    break
    return graph


def imports() -> dict[str, set[str]]:
    """The import graph: each module of pynccl, with the pynccl modules it imports."""
    modules = {
        _module(path): path
        for path in sorted((_ROOT / "pynccl").rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    modules["pynccl._C"] = _ROOT / "pynccl" / "_C.pyi"
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        if path.suffix == ".py":
            is_package = path.name == "__init__.py"
            for imported in _imported(ast.parse(path.read_text()), lazy=is_package):
                if (target := _known(imported, modules)) and target != name:
                    graph[name].add(target)
    return graph


def units(graph: Graph) -> dict[str, set[str]]:
    """Merge an include graph by C++ units: a header with its sources, or another file."""
    names = {file: file.removesuffix(".h") for file in graph if file.endswith(".h")}
    headers = set(names.values())
    for file in graph:
        if file.endswith(".cpp"):
            stem = file.removesuffix(".cpp")
            own = stem
            while own not in headers and "_" in own.rpartition("/")[2]:
                own = own.rpartition("_")[0]
            names[file] = own if own in headers else stem
    return _merged(graph, lambda file: names.get(file, file))


def folders(graph: Graph) -> dict[str, set[str]]:
    """Merge a graph of files or modules by folder(): one node per folder."""
    return _merged(graph, folder)


def _merged(graph: Graph, name_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Merge the nodes of a graph that have the same name."""
    result: dict[str, set[str]] = {}
    for source, targets in graph.items():
        own = result.setdefault(name_of(source), set())
        own |= {name_of(target) for target in targets} - {name_of(source)}
    return result


def folder(name: str) -> str:
    """The folder of a file, or the part of pynccl that a module is in: see _DIVIDED."""
    if "/" in name:
        return name.rpartition("/")[0]
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[1:2] and parts[1] in _DIVIDED else 2])


def cycle(graph: Graph) -> list[str]:
    """The nodes of one cycle of a graph; empty if it has none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []


def wrong_uses(graph: Graph) -> list[str]:
    """Describe the edges of a graph of files or modules that violate ORDERS."""
    earlier: dict[str, set[str]] = {}
    ordered = {name for order in ORDERS for name in order}
    for order in ORDERS:
        for position, name in enumerate(order):
            earlier.setdefault(name, set()).update(order[:position])
    wrong = []
    for source, targets in sorted(graph.items()):
        own = folder(source)
        if own.startswith(("csrc/", "pynccl.mirror")) and own not in ordered:
            wrong.append(f"{source}: {own} is in no order of tools/dependencies.py")
            continue
        for target in sorted(targets):
            other = folder(target)
            bound = other.startswith("csrc/") or other.startswith("pynccl.mirror")
            if own in ordered and bound and other not in {own, *earlier[own]}:
                wrong.append(f"{source} uses {target}")
    return wrong


def starred_literals(code: str) -> list[int]:
    """The lines of Python code that unpack a literal into another literal or into a call."""
    literals = (ast.Tuple, ast.List, ast.Set)
    found = []
    for node in ast.walk(ast.parse(code)):
        items = node.elts if isinstance(node, literals) else getattr(node, "args", ())
        for item in items if isinstance(items, list) else ():
            if isinstance(item, ast.Starred) and isinstance(item.value, literals):
                found.append(item.lineno)
    return sorted(found)


def _python_files() -> list[Path]:
    command = ["git", "ls-files", "-z", "*.py"]
    listed = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout
    return [_ROOT / name for name in listed.split("\0") if name and (_ROOT / name).is_file()]


def _name(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _module(path: Path) -> str:
    parts = path.relative_to(_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _known(name: str, modules: Iterable[str]) -> str:
    """The module of pynccl that a dotted name is or is in, else an empty string."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _imported(tree: ast.AST, *, lazy: bool) -> Iterator[str]:
    """The dotted names that a module imports. lazy: it may have lazy attributes."""
    for node in ast.iter_child_nodes(tree):
        if lazy and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from _imported(other, lazy=lazy)
        elif isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            continue
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _imported(node, lazy=lazy)


def main() -> int:
    """Print the graphs and the errors, and return the exit status."""
    wrong = []
    for title, graph in (("includes of csrc", includes()), ("imports of pynccl", imports())):
        print(f"\n{title}")
        for source, targets in sorted(folders(graph).items()):
            print(f"  {source}: {', '.join(sorted(targets)) or '-'}")
        for name, merged in (("cycle", units(graph)), ("cycle of folders", folders(graph))):
            if found := cycle(merged):
                wrong.append(f"a {name}: {', '.join(found)}")
        wrong += wrong_uses(graph)
    for path in _python_files():
        lines = starred_literals(path.read_text())
        wrong += [f"{_name(path)}:{line}: a starred literal; write its elements" for line in lines]
    print(f"\n{len(wrong)} wrong" if wrong else "\nno cycle, no use of a later folder")
    for line in wrong:
        print(f"  {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
