"""Fuzzing of what hostnccl reads from sockets."""
