"""Tests of pynccl.trace: files, merging, summaries, the order check, and recording."""
