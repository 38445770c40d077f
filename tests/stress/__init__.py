"""A stress program for hostnccl, built with sanitizers."""
