"""Tests of pynccl.flight: dumps of the flight record, and their comparison."""
