"""Adapters that connect trainers and inference engines to pynccl.weights.

Import the module of your project, for example ``pynccl.weights.adapters.trl``. The others are not
imported.
"""

__all__: list[str] = []
