"""Communication inside kernels: functions that read, write and signal peers.

:mod:`pynccl.device.triton` supports Triton kernels, on GPUs and in Triton's interpreter on CPUs;
:mod:`pynccl.device.numba` supports functions that Numba compiles for CPUs. Each imports its
compiler; this package imports nothing. :mod:`pynccl.device.headers` provides the options to compile
C++ and CUDA C++ kernels with <pynccl/device.h>.

Kernels receive the addresses of all ranks' memory in a symmetric window as an array of 64-bit
words, one per rank. The address is 0 for ranks that loads and stores cannot reach. Signals are
64-bit integers in such a window, initially zero, that are only incremented: kernels of one module
can signal kernels of the other.
"""

__all__: list[str] = []
