"""Flight record dumps: loading, and analysis across ranks.

:func:`pynccl.nccl.dump_flight_record` and PYNCCL_FLIGHT_FILE write them; the command ``pynccl
flight`` reads them. See docs/reliability.md.

A dump is a JSON file of all communicators of a process, written by C++
(csrc/watch/flight_dump.cpp), even if Python is no longer running. All ranks of a communicator share
one id; after grow(), ``joined`` maps it to the id on the new ranks. Collectives are numbered
separately from messages, and messages per direction between two ranks, so records of different
ranks are matched by number. The fingerprint of a record covers all collectives up to it: if it
differs between two ranks, they have called different collectives.

``analysis`` reports mismatches first, then ranks that are behind, then stuck operations.
``missing`` does the same while the program runs: if an operation exceeds its time limit, the ranks
query each other through the store (pynccl/_internal/inquiry.py) and answer with a shortened dump.
"""

__all__: list[str] = []
