"""Tests of pynccl.flight: dumps of the flight record, and what they say together."""
