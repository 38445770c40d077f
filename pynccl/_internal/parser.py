"""The parser of the command ``pynccl`` and of its subcommands, whose help ends with examples."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """A parser whose help ends with examples. Subcommands have parsers of the same class.

    Args:
        examples: command lines.
        options: of ArgumentParser.
    """

    def __init__(self, *, examples: tuple[str, ...] = (), **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.examples = examples

    def format_help(self) -> str:
        """Return the help with the examples below it."""
        text = super().format_help()
        return text + "\nexamples:\n" + "".join(f"  {one}\n" for one in self.examples)
