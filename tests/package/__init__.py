"""Tests of the package, its tools, examples and benchmarks."""
