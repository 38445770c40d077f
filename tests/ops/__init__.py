"""Tests of pynccl.ops, the collectives for torch.compile and autograd."""
