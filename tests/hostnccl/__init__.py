"""Tests specific to the hostnccl engine."""
