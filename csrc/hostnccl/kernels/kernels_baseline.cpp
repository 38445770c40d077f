#define HOSTNCCL_KERNELS baseline
#include "hostnccl/kernels/kernels.inc"
