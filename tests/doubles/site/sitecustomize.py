"""Activates the CUDA double in every Python process that has this folder on its path."""

import os

if os.environ.get("CUDA_DOUBLE_LIBRARIES"):
    from tests.doubles import activate

    activate.activate()
