#define HOSTNCCL_KERNELS avx512
#include "hostnccl/kernels/kernels.inc"
