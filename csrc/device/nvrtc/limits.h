// For NVRTC, which has no C headers: the part of limits.h that NCCL's headers use, with the values
// that libcu++ assigns to the same macros.
#pragma once

#ifndef INT_MAX
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 0x7fffffff
#define UINT_MAX 0xffffffff
#endif
