"""Checks that the files of this package belong to its distribution, rawnccl.

The name ``pynccl`` is taken on PyPI, by a project with the same import name. pip does not detect
the conflict: if that project is installed later, its ``pynccl/__init__.py`` replaces ours, and
removing it removes ours.
"""

from __future__ import annotations

import sys

__all__ = ["DISTRIBUTION", "check", "conflict"]

DISTRIBUTION = "rawnccl"
_OTHER = "pynccl"
_REPAIR = "pip uninstall -y pynccl rawnccl && pip install rawnccl"


def check() -> None:
    """Raise if the package's ``__init__.py`` is not ours. If it is, this costs one look-up.

    Raises:
        ImportError: the file belongs to another project, or is missing.
    """
    package = sys.modules["pynccl"]
    if hasattr(package, "OWN_NAMES"):
        return
    version = _version(_OTHER)
    if package.__file__ is None:
        what = "pynccl/__init__.py is missing; uninstalling the other package pynccl removes it"
    elif version is None:
        what = f"{package.__file__} is not the one of {DISTRIBUTION}"
    else:
        what = (
            f"{package.__file__} is not the one of {DISTRIBUTION}: pynccl {version}, another "
            "project's package with the same import name, was installed over it"
        )
    raise ImportError(f"{what}. To repair it: {_REPAIR}", name="pynccl", path=package.__file__)


def conflict() -> str | None:
    """Describe the conflict if the other project's package is installed as well, else None.

    Reads the metadata of the installed distributions, which takes milliseconds.
    """
    version = _version(_OTHER)
    if version is None:
        return None
    return (
        f"pynccl {version}, another project's package with the same import name, is installed as "
        f"well; installing or removing it breaks {DISTRIBUTION}. To repair it: {_REPAIR}"
    )


def _version(distribution: str) -> str | None:
    import importlib.metadata  # deferred: slower to import than pynccl

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
