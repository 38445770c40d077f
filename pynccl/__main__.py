"""The command ``python -m pynccl``, which is ``pynccl``."""

import sys

from pynccl.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
