"""Check pynccl.weights, pynccl.compat and the torch.distributed backend with released packages.

Creates an environment below build/integrations for each section of requirements.txt, runs the
checks there, and prints their rows for the table of docs/integrations.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

_ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
_BUILD = _ROOT / "build" / "integrations"
_CHECKS = {  # by environment
    "vllm": ["vllm", "vllm_wrapper", "vllm_parallel", "openrlhf"],
    "verl": ["verl", "sglang"],
    "ray": ["ray", "ray_train"],
    "frameworks": ["frameworks"],
}
_TITLES = {
    "vllm": "vLLM",
    "trl": "TRL",
    "verl": "verl",
    "sglang": "SGLang",
    "openrlhf": "OpenRLHF",
    "ray": "Ray",
    "deepspeed": "DeepSpeed",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "pytorch-lightning": "Lightning",
    "megatron-core": "Megatron-core",
    "torchft": "torchft",
    "torchtitan": "torchtitan",
}
_NOTES = {"sglang": "its sources parsed, nothing ran: "}


def _sections() -> dict[str, list[str]]:
    """The requirements in each section, by its heading."""
    text = (_HERE / "requirements.txt").read_text()
    parts = re.split(r"(?m)^# \[(.*)\]$", text)[1:]
    return {
        name: [line for line in lines.splitlines() if line and not line.startswith("#")]
        for name, lines in zip(parts[::2], parts[1::2], strict=True)
    }


def _environment(name: str, sections: dict[str, list[str]]) -> Path:
    """Create an environment unless one with these packages exists. Return its interpreter."""
    folder = _BUILD / name
    python = folder / "bin" / "python"
    needed = sections[f"{name}: what importing them needs"]
    stamp, content = folder / "packages.txt", "\n".join(needed)
    if stamp.exists() and stamp.read_text() == content:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    _install(python, *needed)
    _install(python, "--no-deps", "--editable", str(_ROOT))  # `make` has compiled it
    stamp.write_text(content)
    return python


def _install(python: Path, *packages: str) -> None:
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile"]
    subprocess.run([*pip, *packages], check=True, env={**os.environ, "PYNCCL_BUILT": "1"})


def _run(python: Path, check: str) -> list[tuple[str, bool]]:
    """Run a file. Return the names of its checks, and whether they passed."""
    report = _BUILD / f"{check}.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", _HERE / f"check_{check}.py"]
    ended = subprocess.run(command, check=False, cwd=_ROOT)
    results = [
        (str(case.get("name")), len(case) == 0)
        for case in (ElementTree.parse(report).iter("testcase") if report.exists() else ())
    ]
    if ended.returncode and all(passed for _, passed in results):
        results.append((f"test_{check}_import", False))
    return results


def _rows(results: list[tuple[str, bool]], versions: dict[str, str]) -> list[str]:
    """The rows of the table, one for each library."""
    ran: dict[str, dict[str, bool]] = {}
    for name, passed in results:
        words = name.partition("[")[0].removeprefix("test_").replace("_", " ")
        for library in versions:
            begin = f"{library.replace('-', ' ')} "
            if words.startswith(begin):
                what, checks = words.removeprefix(begin), ran.setdefault(library, {})
                checks[what] = checks.get(what, True) and passed
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    rows = []
    for library, checks in ran.items():
        failed = [what for what, passed in checks.items() if not passed]
        what = _NOTES.get(library, "") + ", ".join(checks)
        result = f"failed: {', '.join(failed)}" if failed else "passed"
        rows.append(f"| {_TITLES[library]} | {versions[library]} | {what} | {result} | {today} |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.integrations.run", description=__doc__)
    parser.add_argument(
        "environments", nargs="*", choices=[*_CHECKS, []], help="to check; all if none is named"
    )
    sections = _sections()
    rows, passed = [], True
    for name in parser.parse_args().environments or _CHECKS:
        for releases in ("earlier releases", "newest releases"):
            packages = sections.get(f"{name}: {releases}", [])
            if not packages:
                continue
            python = _environment(name, sections)
            _install(python, "--no-deps", *packages)
            results = [result for check in _CHECKS[name] for result in _run(python, check)]
            rows += _rows(results, dict(line.split("==", 1) for line in packages))
            passed = passed and all(ok for _, ok in results)
    print("\n".join(sorted(rows)))
    return not passed


if __name__ == "__main__":
    sys.exit(main())
