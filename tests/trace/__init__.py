"""Tests of pynccl.tools.trace: files, merging, summaries, the order check, and recording."""
