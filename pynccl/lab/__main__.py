"""The command ``python -m pynccl.lab``."""

import sys

from pynccl.lab.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
