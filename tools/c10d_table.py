"""Generates the table "Features by torch version" of docs/c10d.md.

    python -m tools.c10d_table          # rewrite the table
    python -m tools.c10d_table --check  # fail if it would change

tests/c10d/versions.json records the contents of each torch version. A run also updates the entry of
the installed torch: run it with each version after changing NAMES or TEXTS. The features of the
backend are read from csrc/c10d and pyproject.toml.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "c10d.md"
DATA = ROOT / "tests" / "c10d" / "versions.json"
SOURCES = ROOT / "csrc" / "c10d"
BEGIN = "<!-- made by python -m tools.c10d_table -->\n"
END = "<!-- end of the table -->\n"

# The torch classes that a backend derives from, with their headers.
CLASSES = {
    "Backend": "Backend.hpp",
    "Options": "Backend.hpp",
    "Work": "Work.hpp",
    "Window": "Window.hpp",
}

# Names that a version of torch may have, as MODULE.NAME or MODULE.CLASS.NAME.
NAMES = (
    "torch.distributed.all_gather_single",
    "torch.distributed.gather_single",
    "torch.distributed.get_backend_impl",
    "torch.distributed.reduce_scatter_single",
    "torch.distributed.set_timeout",
    "torch.distributed.shrink_group",
    "torch.distributed.distributed_c10d._maybe_attach_flight_recorder",
    "torch.distributed._symmetric_memory._nccl.register_external_nccl_comm",
    "torch._C._distributed_c10d.FlightRecorderHook",
    "torch._C._distributed_c10d.HealthCheckHook",
    "torch._C._distributed_c10d.NanCheckHook",
    "torch._C._distributed_c10d.ProcessGroup.register_pre_hook",
    "torch._C._distributed_c10d._DistributedBackendOptions.enable_reconfigure",
    "torch._C._distributed_c10d._DistributedBackendOptions.split_from",
)

# Fragments of distributed_c10d.py that show a feature torch provides for any backend.
TEXTS = {
    "the entry point": 'group="torch.distributed.backends"',
    "the wrapper of DETAIL": "or backend_str.upper() in Backend._plugins",
}

# Methods that torch calls, and the older names they forward to.
FORWARDED = {
    "Backend.all_gather_single": "Backend._allgather_base",
    "Backend.all_gather_single_coalesced": "Backend.allgather_into_tensor_coalesced",
    "Backend.all_to_all_single": "Backend.alltoall_base",
    "Backend.gather_single": "Backend.gather_into_tensor",
    "Backend.reduce_scatter_single": "Backend._reduce_scatter_base",
    "Backend.reduce_scatter_single_coalesced": "Backend.reduce_scatter_tensor_coalesced",
}


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        what: the feature.
        facts: names that a torch version must all have to provide the feature.
        note: text added to the backend's entry; the entire entry if no fact is a method.
        default: methods of the feature that need no override, because torch's default is right.
    """

    what: str
    facts: tuple[str, ...]
    note: str = ""
    default: tuple[str, ...] = ()


def _methods(owner: str, names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names.split())


HOOK = "torch's own, for any backend"

ROWS = (
    Row(
        "collectives",
        _methods(
            "Backend",
            "allgather _allgather_base allgather_coalesced allgather_into_tensor_coalesced "
            "allreduce allreduce_coalesced alltoall alltoall_base barrier broadcast gather reduce "
            "reduce_scatter _reduce_scatter_base reduce_scatter_tensor_coalesced scatter",
        ),
    ),
    Row("messages", _methods("Backend", "send recv recvAnysource")),
    Row("coalescing", _methods("Backend", "supportsCoalescing startCoalescing endCoalescing")),
    Row(
        "`allreduce_sparse`, `monitoredBarrier`",
        _methods("Backend", "allreduce_sparse monitoredBarrier"),
        "NCCL has no sparse tensors; torch refuses a `monitored_barrier` of all but gloo",
    ),
    Row(
        "`all_gather_single`, `reduce_scatter_single` of torch.distributed",
        ("torch.distributed.all_gather_single", "torch.distributed.reduce_scatter_single"),
        "yes: torch calls what is there under the older names",
    ),
    Row(
        "`*_single` methods",
        _methods(
            "Backend",
            "all_gather_single all_gather_single_coalesced all_to_all_single "
            "reduce_scatter_single reduce_scatter_single_coalesced",
        ),
    ),
    Row(
        "`gather_single`",
        (
            "torch.distributed.gather_single",
            *_methods("Backend", "gather_single gather_into_tensor"),
        ),
    ),
    Row(
        "sequence numbers",
        _methods("Backend", "getSequenceNumberForGroup setSequenceNumberForGroup"),
    ),
    Row("`abort`, `shutdown`", _methods("Backend", "abort shutdown")),
    Row("`setTimeout` of the backend", _methods("Backend", "setTimeout")),
    Row(
        "`set_timeout` of torch.distributed",
        ("torch.distributed.set_timeout",),
        "yes: it calls the backend's",
    ),
    Row("`addEphemeralTimeout`", _methods("Backend", "addEphemeralTimeout")),
    Row("`getError`", _methods("Backend", "getError")),
    Row("options", _methods("Backend", "getBackendName getBackendOptions")),
    Row("`Options::clone`", _methods("Options", "clone")),
    Row(
        "the bound device",
        _methods("Backend", "eagerConnectSingleDevice"),
        default=_methods("Backend", "getBoundDeviceId setBoundDeviceId setGroupUid"),
    ),
    Row("`isInitialized`", _methods("Backend", "isInitialized")),
    Row("`split`", _methods("Backend", "supportsSplitting split")),
    Row("`merge`", _methods("Backend", "merge")),
    Row(
        "`shrink`, with `shrink_group`",
        ("torch.distributed.shrink_group", *_methods("Backend", "supportsShrinking shrink")),
    ),
    Row(
        "`reconfigure`",
        (
            *_methods("Backend", "supportsReconfigure get_reconfigure_handle reconfigure"),
            "torch._C._distributed_c10d._DistributedBackendOptions.enable_reconfigure",
        ),
    ),
    Row("memory: `allocateTensor`", _methods("Backend", "supportsTensorAlloc allocateTensor")),
    Row(
        "memory: `getMemAllocator`",
        _methods("Backend", "getMemAllocator"),
        "its result is a class of torch's CUDA headers; `pynccl.memory.torch_pool()` is the pool",
    ),
    Row(
        "`suspend`, `resume`, `getMemoryStats`",
        _methods("Backend", "suspend resume getMemoryStats"),
    ),
    Row("windows", _methods("Backend", "supportsWindow new_window")),
    Row(
        "operations of a window",
        _methods(
            "Window",
            "tensor_register tensor_deregister put signal wait_signal map_remote_tensor get_attr",
        ),
    ),
    Row(
        "time estimates",
        _methods("Backend", "supportsTimeEstimation startTimeEstimate endTimeEstimate"),
    ),
    Row(
        "timing, and hooks of torch's old NCCL backend",
        _methods("Backend", "enableCollectivesTiming registerOnCompletionHook waitForPendingWorks"),
    ),
    Row(
        "hooks before and after operations",
        ("torch._C._distributed_c10d.ProcessGroup.register_pre_hook",),
        HOOK,
    ),
    Row("abort hooks", _methods("Backend", "registerAbortHook unregisterAbortHook")),
    Row("whether there are abort hooks", _methods("Backend", "supportsAbortHooks")),
    Row(
        "completion hooks",
        _methods(
            "Backend", "supportsCompletionHooks registerCompletionHook unregisterCompletionHook"
        ),
    ),
    Row(
        "FlightRecorder, attached by hand", ("torch._C._distributed_c10d.FlightRecorderHook",), HOOK
    ),
    Row(
        "FlightRecorder of every group",
        ("torch.distributed.distributed_c10d._maybe_attach_flight_recorder",),
        HOOK,
    ),
    Row(
        "NaN check (`TORCH_DIST_NAN_CHECK=1`)",
        ("torch._C._distributed_c10d.NanCheckHook",),
        HOOK,
    ),
    Row("health check", ("torch._C._distributed_c10d.HealthCheckHook",), HOOK),
    Row("`TORCH_DISTRIBUTED_DEBUG=DETAIL`", ("the wrapper of DETAIL",), HOOK),
    Row("entry point `torch.distributed.backends`", ("the entry point",)),
    Row(
        "`get_backend_impl`",
        ("torch.distributed.get_backend_impl",),
        "torch's own: it returns the backend",
    ),
    Row(
        "`register_external_nccl_comm`, with CUDA",
        ("torch.distributed._symmetric_memory._nccl.register_external_nccl_comm",),
        "[lending](extending.md)",
    ),
    Row(
        "the group from which a creator splits",
        ("torch._C._distributed_c10d._DistributedBackendOptions.split_from",),
        "not used: `split` makes the group",
    ),
    Row(
        "`Work`: state and results",
        _methods(
            "Work", "isCompleted isSuccess exception result sourceRank wait synchronize getFuture"
        ),
        default=_methods("Work", "abort getFutureResult"),
    ),
    Row("`Work::blockCurrentStream`", _methods("Work", "blockCurrentStream")),
    Row("`Work::getSequencenumber`", _methods("Work", "getSequencenumber")),
    Row("`Work::getDuration`", _methods("Work", "getDuration")),
    Row("`Work::getTimeout`", _methods("Work", "getTimeout")),
    Row("`Work::getCompletionKey`", _methods("Work", "getCompletionKey")),
)


def _code(text: str) -> str:
    """Return a header without comments and preprocessor lines."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"^\s*#[^\n]*", "", text, flags=re.MULTILINE)


def _classes(text: str) -> list[tuple[str, str, str]]:
    """The classes of a header: name, bases, body."""
    found = []
    for match in re.finditer(r"\b(?:class|struct)\s+(?:TORCH_API\s+)?(\w+)[^;{}()]*{", text):
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        bases = match.group().partition(":")[2].rstrip("{")
        found.append((match.group(1), bases, text[match.end() : end]))
    return found


def _declarations(body: str) -> str:
    """Return the body of a class without nested bodies."""
    while (found := re.sub(r"{[^{}]*}", ";", body)) != body:
        body = found
    return body


def installed() -> str:
    """The version of the installed torch, such as 2.15."""
    import torch

    return ".".join(torch.__version__.split(".")[:2])


def facts() -> set[str]:
    """The facts that hold for the installed torch."""
    import torch

    headers = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d"
    found = set()
    for owner, header in CLASSES.items():
        if not (headers / header).exists():
            continue
        for name, _, body in _classes(_code((headers / header).read_text())):
            if name != owner:
                continue
            for nested, _, inside in _classes(body):
                if nested in CLASSES:
                    body = body.replace(inside, "")  # noqa: PLW2901
            methods = re.findall(r"\bvirtual\s[^;{(]*?(~?\w+)\s*\(", body)
            found |= {f"{owner}.{method}" for method in methods}
    found |= {name for name in NAMES if _exists(name)}
    script = Path(torch.__file__).parent / "distributed" / "distributed_c10d.py"
    found |= {title for title, text in TEXTS.items() if text in script.read_text()}
    return found


def _exists(name: str) -> bool:
    """Whether a dotted name exists: its longest module prefix, then attributes."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        if module in sys.modules or _found(module):
            value: object = importlib.import_module(module)
            for part in parts[length:]:
                if not hasattr(value, part):
                    return False
                value = getattr(value, part)
            return True
    return False


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is not a package
        return False


def overridden(known: set[str]) -> set[str]:
    """The known facts that the backend provides: methods of its classes, and "the entry point".

    A method need not be marked "override", because an older torch may lack it.
    """
    classes: dict[str, tuple[str, str]] = {}
    for header in sorted(SOURCES.glob("*.h")):
        for name, bases, body in _classes(_code(header.read_text())):
            classes[name] = (bases, body)

    def owner(name: str) -> str | None:
        """The torch class that a class derives from."""
        bases, _ = classes.get(name, ("", ""))
        for match in re.finditer(r"\w+(?:::\w+)*", bases):
            base = match.group()
            last = base.rpartition("::")[2]
            if last == name:
                continue
            if base.startswith("c10d::") and last in CLASSES:
                return last
            if last in classes and (of_base := owner(last)):
                return of_base
        return None

    found = set()
    for name, (_, body) in classes.items():
        if of_torch := owner(name):
            declared = re.findall(r"(\w+)\s*\(", _declarations(body))
            found |= known & {f"{of_torch}.{method}" for method in declared}
    project = (ROOT / "pyproject.toml").read_text()
    if re.search(
        r'^\[project\.entry-points\."torch\.distributed\.backends"\]\npynccl', project, re.M
    ):
        found.add("the entry point")
    return found


def _ours(row: Row, have: set[str]) -> str:
    """The backend's entry: which methods of a row it overrides."""
    needed = [fact for fact in row.facts if not fact.startswith("torch.")]
    methods = [fact for fact in needed if fact.partition(".")[0] in CLASSES]
    if not methods and "the entry point" not in needed:
        return row.note

    def has(fact: str) -> bool:
        names = {FORWARDED.get(fact, fact), fact} | {a for a, b in FORWARDED.items() if b == fact}
        return bool(names & have)

    missing = [fact.rpartition(".")[2] for fact in needed if not has(fact)]
    if len(missing) == len(needed):
        text = "no"
    elif missing:
        text = "yes, but not " + ", ".join(f"`{name}`" for name in missing)
    else:
        text = "yes"
    return f"{text}: {row.note}" if row.note else text


def recorded() -> dict[str, list[str]]:
    """The versions that have each fact, and under "versions" all known versions."""
    data: dict[str, list[str]] = json.loads(DATA.read_text()) if DATA.exists() else {"versions": []}
    return data


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def updated(data: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the data with the facts of the installed torch."""
    version, found = installed(), facts()
    names = {*data, *found} - {"versions"}
    has = {
        name: {*data.get(name, ())} - {version} | ({version} if name in found else set())
        for name in names
    }
    has["versions"] = {*data["versions"], version}
    return {name: sorted(has[name], key=_order) for name in sorted(has) if has[name]}


def table(data: dict[str, list[str]]) -> str:
    """Return the text between the markers."""
    versions, have = data["versions"], overridden(set(data))
    lines = [
        "| | " + " | ".join(versions) + " | pynccl |",
        "|---|" + "---|" * (len(versions) + 1),
    ]
    for row in ROWS:
        cells = [
            "yes" if all(v in data.get(fact, ()) for fact in row.facts) else "-" for v in versions
        ]
        lines.append(f"| {row.what} | " + " | ".join(cells) + f" | {_ours(row, have)} |")
    return "\n".join(lines) + "\n"


def page(data: dict[str, list[str]]) -> str:
    """Return the text of docs/c10d.md with the table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{PAGE} does not have the lines {BEGIN!r} and {END!r}")
    return before + BEGIN + table(data) + END + after


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if something would change")
    check = parser.parse_args().check
    data = updated(recorded())
    if check:
        return int(data != recorded() or page(data) != PAGE.read_text())
    lines = (f" {json.dumps(name)}: {json.dumps(versions)}" for name, versions in data.items())
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    PAGE.write_text(page(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
