#define HOSTNCCL_KERNELS avx2
#include "hostnccl/kernels/kernels.inc"
