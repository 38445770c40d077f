"""Tests of pynccl.weights."""
