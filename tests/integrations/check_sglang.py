"""The adapter of SGLang and pynccl.compat.sglang, against the sources of the released package.

SGLang cannot be imported without its GPU packages, so none of its code runs here. Its sources are
parsed for the names, parameters and results on which the adapter relies, and for the signatures of
its PyNcclCommunicator.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest

from pynccl.compat.sglang import PyNcclCommunicator

_ENGINE = "srt/entrypoints/engine.py"
_UPDATER = "srt/model_executor/model_runner_components/weight_updater.py"
_SCHEDULER = "srt/managers/scheduler_components/weight_updater.py"
_WRAPPER = "srt/distributed/device_communicators/pynccl.py"


def _tree(path: str) -> ast.Module:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return ast.parse((Path(spec.submodule_search_locations[0]) / path).read_text())


def _methods(path: str, class_name: str) -> dict[str, ast.FunctionDef]:
    return {
        one.name: one
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for one in node.body
        if isinstance(one, ast.FunctionDef)
    }


def _method(path: str, class_name: str, name: str) -> ast.FunctionDef:
    methods = _methods(path, class_name)
    assert name in methods, f"{class_name} has no method {name}"
    return methods[name]


def _has(node: ast.AST, text: str) -> bool:
    return text in ast.unparse(node)


@pytest.mark.parametrize(
    ("name", "required", "used"),
    [
        ("begin_weight_update", 0, set()),
        ("end_weight_update", 0, set()),
        ("update_weights_from_tensor", 1, {"load_format"}),
    ],
)
def test_sglang_engine(name: str, required: int, used: set[str]) -> None:
    method = _method(_ENGINE, "Engine", name)
    args = [one.arg for one in method.args.args][1:]
    assert len(args) - len(method.args.defaults) == required
    assert used <= set(args)
    assert _has(method, "return self.loop.run_until_complete")  # on the caller's thread


def test_sglang_answers() -> None:
    merge = _method("srt/managers/communicator.py", "FanOutCommunicator", "merge_results")
    assert _has(merge, "return (all_success, all_message)")
    assert _has(_tree("srt/entrypoints/http_server.py"), "{'success': success, 'message': message}")


def test_sglang_refuses_outside_an_update() -> None:
    update = _method(_SCHEDULER, "SchedulerWeightUpdaterManager", "update_weights_from_tensor")
    assert _has(update, "if self._session is None")
    assert _has(update, "success=False")


def test_sglang_calls_the_loader() -> None:
    update = _method(_UPDATER, "WeightUpdater", "update_weights_from_tensor")
    assert _has(update, "load_format in self.custom_weight_loaders")
    assert _has(update, "custom_loader(self.get_model(), named_tensors)")


def test_sglang_wrapper_signatures() -> None:
    """Our class has every public method of SGLang's, and its parameters begin with SGLang's."""
    methods = _methods(_WRAPPER, "PyNcclCommunicator")
    assert "change_state" in methods
    for name, method in methods.items():
        if name == "__init__" or not name.startswith("_"):
            ours = inspect.signature(getattr(PyNcclCommunicator, name)).parameters.values()
            args, defaults = method.args.args, method.args.defaults
            assert [one.name for one in ours][: len(args)] == [one.arg for one in args], name
            required = [one for one in ours if one.default is inspect.Parameter.empty]
            assert len(required) == len(args) - len(defaults), name
