// For NVRTC, which has no C headers; NCCL includes it without using it.
#pragma once
