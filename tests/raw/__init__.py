"""Tests of pynccl.raw."""
