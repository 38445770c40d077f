"""Communication inside a kernel: functions for kernels that read, write and signal their peers.

:mod:`pynccl.device.triton` is for Triton kernels, on GPUs and in Triton's interpreter on CPUs;
:mod:`pynccl.device.numba` is for functions that Numba compiles for CPUs. Each imports its compiler;
this package imports nothing. :mod:`pynccl.device.headers` has the options that compile kernels in
C++ and CUDA C++ over <pynccl/device.h>.

The kernels get the addresses of all ranks' memory in a symmetric window as an array of 64-bit
words, one for each rank. Ranks that cannot be reached by loads and stores have the address 0.
Signals are 64-bit integers in such a window, zero at first, and are only counted up: a kernel of
one module can signal a kernel of the other.
"""

__all__: list[str] = []
