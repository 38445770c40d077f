"""Dumps of the flight record: reading them, what they say together, and torch's format.

:func:`pynccl.nccl.dump_flight_record` and PYNCCL_FLIGHT_FILE write them; the command ``pynccl
flight`` reads them. See docs/reliability.md.

A dump is a JSON file of all communicators of a process, which C++ writes
(csrc/core/flight_dump.cpp), even if Python does not run any more. Ranks of a communicator have one
id; after grow(), ``joined`` leads to the id of the new ranks. A collective is numbered among the
collectives, a message among those of its direction between two ranks, so records of different ranks
belong together by number. The fingerprint of a record covers all collectives up to it: if it
differs between two ranks, they have called different ones.

``analysis`` reports a mismatch first, then a rank that is behind, then one that is stuck.
``missing`` does the same while the program runs: when an operation exceeds its time limit, the
ranks ask each other through the store (pynccl/_internal/inquiry.py) and answer with a shortened
dump.
"""

__all__: list[str] = []
