"""Tests of the mirror of torch.distributed."""
