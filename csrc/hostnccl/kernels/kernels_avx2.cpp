#define HOSTNCCL_ISA avx2
#include "hostnccl/kernels/kernels.inc"
