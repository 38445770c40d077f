"""Tests of pynccl.nccl, on both providers."""
