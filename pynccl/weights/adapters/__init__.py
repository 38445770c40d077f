"""The interfaces of trainers and inference engines over pynccl.weights."""

from pynccl.weights.adapters import openrlhf, sglang, trl, verl, vllm

__all__ = ["openrlhf", "sglang", "trl", "verl", "vllm"]
