"""Benchmarks: pynccl compared with other libraries, in the same processes, on the same buffers."""
