// Durations from the environment, 0 by default: CUDA_DOUBLE_KERNEL_SECONDS is the minimum of a
// kernel, CUDA_DOUBLE_STREAM_SECONDS is how long a new stream does nothing.
#pragma once

#include <chrono>
#include <cstdlib>
#include <thread>

namespace cuda_double {

inline double seconds_of(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atof(text) : 0;
}

inline void take_time() {
  const double seconds = seconds_of("CUDA_DOUBLE_KERNEL_SECONDS");
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace cuda_double
