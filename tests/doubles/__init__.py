"""A test double of the CUDA driver and of NCCL, with a CUDA device of torch's own tensors and a
stand-in for CuPy's arrays.

It runs the tests of the cuda provider on a machine without a GPU::

    python -m pytest -p tests.doubles.plugin -m gpu

The libraries libcuda.so.1 and libnccl.so.2 are written in C++ (the folder cuda), on a copy of
hostnccl. Device memory is host memory, and a kernel is a function in a stream's queue. Contexts,
devices, streams, events, captures and lifetimes follow CUDA's rules, and NCCL's own rules are
modelled.

Environment:
    PYNCCL_DOUBLE: the NCCL version, one of build.VERSIONS.
    CUDA_DOUBLE_DEVICES: the number of devices, 4 by default.
    CUDA_DOUBLE_DRIVER_VERSION: the version of the driver, 13000 by default.
    CUDA_DOUBLE_KERNEL_SECONDS: the minimum duration of a kernel, 0 by default.
    CUDA_DOUBLE_STREAM_SECONDS: how long a new stream does nothing, 0 by default.
    NCCL_DOUBLE_DEAD_PEERS_SPIN: 0 for an NCCL that notices the death of a peer.
    NCCL_DOUBLE_HANDLE_SECONDS: the time from when a child of a non-blocking communicator is ready
        until its handle is written, 0 by default.
    NCCL_DOUBLE_ONE_SIDED: 0 for ranks that cannot map each other's memory.
    NCCL_DOUBLE_PLUGINS: 0 for an NCCL that knows no version of the plugin interfaces.
    NCCL_DOUBLE_NET_STEPS, NCCL_DOUBLE_NET_SECONDS: transfers of a kernel over the network.
"""
