"""Tools built on the public API: trace analysis, replay, the overlap lab and the doctor.

The core imports none of them, except when ``nccl.trace()`` is called.
"""

__all__: list[str] = []
