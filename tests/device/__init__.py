"""Tests of pynccl.device and of the examples of kernels that communicate."""
