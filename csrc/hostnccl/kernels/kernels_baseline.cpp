#define HOSTNCCL_ISA baseline
#include "hostnccl/kernels/kernels.inc"
