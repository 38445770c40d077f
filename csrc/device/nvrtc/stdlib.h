// For NVRTC, which has no C headers; NCCL uses nothing of it.
#pragma once
