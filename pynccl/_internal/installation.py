"""The check that the files of this package are those of its distribution, rawnccl.

The name ``pynccl`` on the package index belongs to another project, whose package has the same
import name. pip does not refuse that: where the other one is installed later, its
``pynccl/__init__.py`` replaces ours, and where it is removed, ours is removed with it.
"""

from __future__ import annotations

import sys

__all__ = ["DISTRIBUTION", "check", "conflict"]

DISTRIBUTION = "rawnccl"
_OTHER = "pynccl"
_REPAIR = "pip uninstall -y pynccl rawnccl && pip install rawnccl"


def check() -> None:
    """Refuse a package whose ``__init__.py`` is not ours. Where it is, this costs one look-up.

    Raises:
        ImportError: it is another project's, or it is missing.
    """
    package = sys.modules["pynccl"]
    if hasattr(package, "OWN_NAMES"):
        return
    version = _version(_OTHER)
    if package.__file__ is None:
        what = "pynccl/__init__.py is missing; removing another package named pynccl removes it"
    elif version is None:
        what = f"{package.__file__} is not the one of {DISTRIBUTION}"
    else:
        what = (
            f"{package.__file__} is not the one of {DISTRIBUTION}: pynccl {version}, another "
            "project's package with the same import name, was installed over it"
        )
    raise ImportError(f"{what}. To repair it: {_REPAIR}", name="pynccl", path=package.__file__)


def conflict() -> str | None:
    """What is wrong where the other project's package is installed as well; None where it is not.

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
    import importlib.metadata  # takes longer than the import of pynccl

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
