"""Tests of pynccl as a backend of torch.distributed."""
