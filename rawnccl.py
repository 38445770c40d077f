"""The command ``pynccl``, outside the package so that it runs if another pynccl shadows ours."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> int:
    """Run the command ``pynccl``.

    Returns:
        The exit status: 2 if Python imports another project's pynccl, or if it has damaged ours.
    """
    problem = _shadow()
    if problem is None:
        try:
            from pynccl.cli import main as run

            return run()
        except ImportError as error:
            if error.name != "pynccl":  # of pynccl._internal.installation
                raise
            problem = str(error)
    print(f"pynccl: {problem}", file=sys.stderr)
    return 2


def _shadow() -> str | None:
    """Describe the other project's package if Python finds it before ours, else return None."""
    ours = Path(__file__).resolve().with_name("pynccl")
    spec = importlib.util.find_spec("pynccl")
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    if any(Path(place, "cli.py").is_file() for place in places):
        return None
    other = Path(places[0] if places else str(spec.origin))
    folder = str(other.parent)
    if folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        repair = f"remove {folder} from PYTHONPATH"
    else:
        repair = f"uninstall it (pip uninstall pynccl), or remove {folder} from sys.path"
    return (
        f"{other} shadows {ours}: another project's package has the same import name, and {folder} "
        f"comes first on sys.path. To repair it, {repair}"
    )


if __name__ == "__main__":
    sys.exit(main())
