"""Tests of ``pynccl doctor`` and of the advice of ``pynccl info``."""
