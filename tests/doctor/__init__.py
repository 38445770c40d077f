"""Tests of ``pynccl doctor``."""
