"""Benchmarks of pynccl beside other libraries, in the same processes and on the same buffers."""
