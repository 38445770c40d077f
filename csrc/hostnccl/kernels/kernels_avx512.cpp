#define HOSTNCCL_ISA avx512
#include "hostnccl/kernels/kernels.inc"
