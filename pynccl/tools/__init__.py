"""Programs over the public API: traces, replay, the overlap lab, the doctor.

What they are built on imports none of them, except where ``nccl.trace()`` is asked for.
"""

__all__: list[str] = []
