"""``python -m pynccl``, equivalent to the command ``pynccl``."""

import sys

from pynccl.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
