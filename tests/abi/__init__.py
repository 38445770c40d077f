"""Checks csrc/abi against real nccl.h files and libraries."""
