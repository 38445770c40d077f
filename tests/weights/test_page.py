"""Runs the programs of docs/weights.md as threads."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pynccl.weights import WeightReceiver, WeightSender
from tests.docs.blocks import read
from tests.support.blocking import in_threads
from tests.support.commands import free_port

_PAGE = Path(__file__).parents[2] / "docs" / "weights.md"
_ENGINES = 2


def _blocks() -> list[str]:
    return [block.text for block in read(_PAGE).blocks if "test_page" in str(block.marks)]


def _model(value: float) -> torch.nn.Module:
    model = torch.nn.Linear(256, 128)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model.requires_grad_(requires_grad=False)


def _program(number: int, folder: Path) -> str:
    """A program of the page, with this test's address and key."""
    text = re.sub(r"(0\.0\.0\.0|trainer):29600", f"127.0.0.1:{free_port()}", _blocks()[number])
    key = folder / "weights.key"
    key.touch(0o600)
    key.write_text("k" * 32)
    return text.replace("weights.key", str(key))


def test_the_page_has_two_programs() -> None:
    assert len(_blocks()) == 2


def test_the_first_program(tmp_path: Path) -> None:
    text = _program(0, tmp_path)
    imports, trainer, engine = re.split(r"# in the trainer|# in each engine", text)
    engines = [_model(0) for _ in range(_ENGINES)]

    def part(code: str, model: torch.nn.Module) -> Callable[[], None]:
        names = {"model": model}

        def run() -> None:
            exec(imports + code, names)
            names.get("sender", names.get("receiver")).close()  # type: ignore[operator]
            report = names["report"]
            assert len(report.receivers) == _ENGINES, report

        return run

    in_threads(part(trainer, _model(3)), *(part(engine, model) for model in engines))
    for model in engines:
        assert all((parameter == 3).all() for parameter in model.parameters())


def test_the_program_with_two_trainers(tmp_path: Path) -> None:
    parts = re.split(r"# in .*", _program(1, tmp_path))[1:]
    weight = torch.ones(100)

    def run(code: str) -> None:
        names: dict[str, Any] = {"WeightSender": WeightSender, "WeightReceiver": WeightReceiver}
        exec(code, {**names, "Path": Path}, names)
        if "sender" in names:
            report = names["sender"].send({"weight": weight})
            names["sender"].close()
        else:
            report = names["receiver"].receive()
            assert torch.equal(names["receiver"].tensors["weight"], weight)
            names["receiver"].close()
        assert report.receivers == ("engine 0",)
        for attribute in ("version", "nbytes", "seconds", "bandwidth", "lost"):
            assert hasattr(report, attribute)

    assert len(parts) == 3
    in_threads(*(functools.partial(run, part) for part in parts))
