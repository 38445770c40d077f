"""Adapters that connect trainers and inference engines to pynccl.weights."""

from pynccl.weights.adapters import openrlhf, sglang, trl, verl, vllm

__all__ = ["openrlhf", "sglang", "trl", "verl", "vllm"]
