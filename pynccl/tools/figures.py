"""Figures of matplotlib, which is imported when one is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "new_figure", "save"]


def check_matplotlib() -> None:
    """Check that figures can be drawn, before a measurement that ends with one.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"a plot needs matplotlib (pip install 'rawnccl[plot]'): {error}"
        ) from error


def new_figure(width: float, height: float) -> Figure:
    """Create a figure that is drawn without a display.

    Args:
        width: in inches.
        height: in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure to an image file, creating its folder.

    Raises:
        ValueError: matplotlib does not support the format.
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
