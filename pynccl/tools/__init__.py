"""Tools built on the public API: trace analysis, replay, the overlap lab and the doctor.

The core imports none of them, except to record: for ``nccl.trace()`` and ``nccl.range()``, and if
PYNCCL_TRACE or PYNCCL_RECORD is set.
"""

__all__: list[str] = []
