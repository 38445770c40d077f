"""A test double of the CUDA driver and of NCCL, with stand-ins for torch's and CuPy's arrays.

It runs the tests of the cuda provider on a machine without a GPU::

    python -m pytest -p tests.doubles.plugin -m gpu

The libraries libcuda.so.1 and libnccl.so.2 are written in C++ (the folder cuda), on a copy of
hostnccl. Device memory is host memory, and a kernel is a function in a stream's queue. Contexts,
devices, streams, events, captures and lifetimes follow CUDA's rules, and NCCL's own rules are
modelled.

Environment:
    CUDA_DOUBLE_TENSORS: "device" makes torch's own tensors CUDA tensors (cuda/torch/device.cpp, for
        torch.distributed). The default is a stand-in in Python (tensor.py).
    PYNCCL_DOUBLE: the NCCL version: 2.18, 2.24, 2.28, 2.30 or 2.32. Empty for no double.
    CUDA_DOUBLE_DEVICES: the number of devices, 4 by default.
    CUDA_DOUBLE_KERNEL_SECONDS: the minimum duration of a kernel, 0 by default.
    CUDA_DOUBLE_STRICT: 0 for a driver that accepts explicit streams in threads without a context.
    NCCL_DOUBLE_*: enable (1) or disable (0) NCCL's rules, see cuda/nccl/rules.h.
"""
