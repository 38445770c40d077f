"""Dumps of the flight record: reading them, what they say together, and torch's format.

:func:`pynccl.nccl.dump_flight_record` and PYNCCL_FLIGHT_FILE write them; the command ``pynccl
flight`` reads them. See docs/reliability.md.
"""

__all__: list[str] = []
