// For NVRTC, which has no C headers: as much of limits.h as NCCL's headers use, with
// the values that libcu++ gives the same macros.
#pragma once

#ifndef INT_MAX
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 0x7fffffff
#define UINT_MAX 0xffffffff
#endif
