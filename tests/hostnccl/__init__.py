"""Tests of what is particular to the hostnccl engine."""
