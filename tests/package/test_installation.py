"""Proves that an installation damaged by another project's package with the same import name is
rejected with advice, that `pynccl info` reports one at risk, and that an intact installation skips
both checks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pynccl
from tests.support.commands import ROOT, run_command

_REPAIR = "pip uninstall -y pynccl rawnccl && pip install rawnccl"


def _install(site: Path) -> Path:
    """Install this package as links to its files; return its folder."""
    package = site / "pynccl"
    package.mkdir(parents=True)
    for file in Path(pynccl.__file__).parent.iterdir():
        (package / file.name).symlink_to(file)
    return package


def _metadata(site: Path, name: str, version: str) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    others = [path for path in sys.path if path and Path(path).resolve() != ROOT]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *others])}
    return run_command([sys.executable, *arguments], site, env, timeout=60)


_IMPORTS = """
import importlib, pynccl
pynccl.Nccl
for module in ("nccl", "raw", "tools.doctor.info", "c10d"):
    try:
        importlib.import_module(f"pynccl.{module}")
    except ImportError as error:
        print(error)
"""


def test_another_package_was_installed_over_it(tmp_path: Path) -> None:
    package = _install(tmp_path)
    (package / "__init__.py").unlink()
    (package / "__init__.py").write_text("Nccl = NcclWrp = object\n")
    _metadata(tmp_path, "pynccl", "0.1.2")
    done = _python(tmp_path, "-c", _IMPORTS)
    errors = done.stdout.splitlines()
    assert len(errors) == 4, done
    for error in errors:
        assert error.startswith(f"{package}/__init__.py is not the one of rawnccl")
        assert "pynccl 0.1.2, another project's package" in error
        assert _REPAIR in error


def test_the_removal_of_another_package_removed_a_file(tmp_path: Path) -> None:
    package = _install(tmp_path)
    (package / "__init__.py").unlink()
    done = _python(tmp_path, "-c", "import pynccl.nccl")
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ImportError: pynccl/__init__.py is missing")
    assert _REPAIR in error


def test_a_package_below_it_is_reported(tmp_path: Path) -> None:
    _install(tmp_path)
    _metadata(tmp_path, "pynccl", "0.1.2")
    done = _python(tmp_path, "-m", "pynccl", "info")
    assert done.returncode == 0, done.stderr
    (problem,) = (line for line in done.stdout.splitlines() if line.startswith("problem: "))
    assert "pynccl 0.1.2, another project's package" in problem
    assert _REPAIR in problem


def test_another_package_is_found_first(tmp_path: Path) -> None:
    """The command names the package that shadows ours, and the repair."""
    package = tmp_path / "pynccl"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('this must not run')\n")
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); import rawnccl; sys.exit(rawnccl.main())"
    )
    done = _python(tmp_path, "-c", program, "doctor")
    assert (done.returncode, done.stdout) == (2, ""), done
    assert f"pynccl: {package} shadows {ROOT / 'pynccl'}: " in done.stderr
    assert f"remove {tmp_path} from PYTHONPATH" in done.stderr
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import rawnccl; rawnccl.main()"
    done = run_command([sys.executable, "-c", program], tmp_path, env, timeout=60)
    assert "uninstall it (pip uninstall pynccl)" in done.stderr
    (package / "__init__.py").unlink()
    package.rmdir()
    program = "import sys, rawnccl; sys.exit(rawnccl.main())"
    done = run_command([sys.executable, "-c", program, "hostnccl"], tmp_path, env, timeout=60)
    assert done.returncode == 0, done


def test_the_command_reports_a_damaged_package(tmp_path: Path) -> None:
    package = _install(tmp_path)
    (package / "__init__.py").unlink()
    (tmp_path / "rawnccl.py").symlink_to(ROOT / "rawnccl.py")
    done = _python(tmp_path, "-c", "import sys, rawnccl; sys.exit(rawnccl.main())", "info")
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert error.startswith("pynccl: pynccl/__init__.py is missing")


def test_nothing_is_wrong(tmp_path: Path) -> None:
    """The metadata of the installed packages, which take milliseconds, are not read."""
    _install(tmp_path)
    code = "import pynccl.nccl, sys; print(sorted(n for n in sys.modules if 'metadata' in n))"
    done = _python(tmp_path, "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    done = _python(tmp_path, "-m", "pynccl", "info")
    assert done.returncode == 0, done.stderr
    assert "problem" not in done.stdout
