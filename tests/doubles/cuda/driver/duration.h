// The minimum duration of a kernel: CUDA_DOUBLE_KERNEL_SECONDS, read for each kernel, 0 by default.
#pragma once

#include <chrono>
#include <cstdlib>
#include <thread>

namespace cuda_double {

inline void take_time() {
  const char* text = std::getenv("CUDA_DOUBLE_KERNEL_SECONDS");
  const double seconds = text ? std::atof(text) : 0;
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace cuda_double
