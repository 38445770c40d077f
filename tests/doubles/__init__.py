"""A test double of the CUDA driver and of NCCL, and stand-ins for torch's and CuPy's arrays on it.

It makes the tests of the cuda provider run on a machine without a GPU::

    python -m pytest -p tests.doubles.plugin -m gpu

The libraries are libcuda.so.1 and libnccl.so.2 in C++ (the folder cuda), over a copy of hostnccl.
Device memory is host memory, a kernel is a function in a stream's queue; contexts, devices,
streams, events, captures and lifetimes are CUDA's, and NCCL's own rules are modelled.

Environment:
    CUDA_DOUBLE_TENSORS: device for torch's own tensors as CUDA tensors (cuda/torch/device.cpp, for
        torch.distributed); by default a stand-in for them in Python (tensor.py).
    PYNCCL_DOUBLE: the version that NCCL is: 2.18, 2.24, 2.28, 2.30 or 2.32; empty for no double.
    CUDA_DOUBLE_DEVICES: how many devices there are; 4 by default.
    CUDA_DOUBLE_KERNEL_SECONDS: how long each kernel takes at least; 0 by default.
    CUDA_DOUBLE_STRICT: 0 for a driver that takes explicit streams in threads without a context.
    NCCL_DOUBLE_*: NCCL's rules, 1 or 0, see cuda/nccl/rules.h.
"""
