"""Proves that each help of the command `pynccl` has examples, which are valid commands."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pynccl import cli
from tests.support.commands import python_output, run_command


def _help(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def _helps(words: list[str], capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    text = _help(words, capsys)
    yield " ".join(words), text
    if found := re.search(r"\{([\w,-]+)\}\s+\.\.\.", text):
        for name in found[1].split(","):
            yield from _helps([*words, name], capsys)


def test_every_help_ends_with_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    helps = dict(_helps([], capsys))
    assert {"info", "trace show", "lab overlap", "build-backend"} <= helps.keys()
    for command, text in helps.items():
        examples = text.partition("\nexamples:\n")[2].splitlines()
        assert any(f"pynccl {command}".strip() in example for example in examples), text
        for example in examples:
            _, _, arguments = example.partition("pynccl ")
            if not example.strip().startswith("pynccl "):
                continue  # the program whose output the next command reads
            words = shlex.split(arguments)
            assert cli._parser(words).parse_args(words)


@pytest.mark.parametrize("command", ["info", "doctor --provider host"])
def test_a_closed_output(command: str, tmp_path: Path) -> None:
    """There is no error: the report is not printed."""
    line = f"exec {shlex.quote(sys.executable)} -m pynccl {command} >&-"
    done = run_command(["sh", "-c", line], tmp_path, {**os.environ}, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_wrong_provider_in_the_environment(tmp_path: Path) -> None:
    for command, code in (("info", 0), ("explain", 2), ("bench --help", 2)):
        line = [sys.executable, "-m", "pynccl", *command.split()]
        done = run_command(line, tmp_path, {**os.environ, "PYNCCL_PROVIDER": "gpu"}, timeout=60)
        assert done.returncode == code
        assert "PYNCCL_PROVIDER: 'gpu' is not one of" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_errors_without_a_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "PYNCCL_HOSTNCCL_LIBRARY": "/missing"}
    for command, code, text in (
        ("info", 2, "pynccl info: /missing: cannot open"),
        ("explain --provider host", 1, "pynccl explain: 1 of 1 ranks failed"),
        ("flight missing", 2, "pynccl flight: [Errno 2]"),
    ):
        line = [sys.executable, "-m", "pynccl", *command.split()]
        done = run_command(line, tmp_path, environment, timeout=60)
        assert done.returncode == code
        assert done.stderr.startswith(text)
    line = [sys.executable, "-X", "dev", "-m", "pynccl", "flight", "missing"]
    assert "Traceback" in run_command(line, tmp_path, environment, timeout=60).stderr


def test_a_command_imports_only_its_own_module() -> None:
    code = (
        "import sys; from pynccl import cli; cli._parser(['trace']);"
        "print(*(name for name in sys.modules if name.startswith('pynccl.tools.')))"
    )
    printed = python_output(code).split()
    assert "pynccl.tools.trace.command" in printed
    commands = {name for name in printed if name.endswith((".command", ".info"))}
    assert commands == {"pynccl.tools.trace.command"}
    assert not python_output(code.replace("trace", "hostnccl"))
