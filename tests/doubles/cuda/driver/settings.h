// Settings from environment variables, which are read at each use, and waits.
#pragma once

#include <chrono>
#include <cstdlib>
#include <thread>

namespace cuda_double {

inline double setting(const char* variable, double otherwise = 0) {
  const char* text = std::getenv(variable);
  return text && *text ? std::atof(text) : otherwise;
}

// The minimum duration of a kernel.
inline void take_time() {
  const double seconds = setting("CUDA_DOUBLE_KERNEL_SECONDS");
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

template <class Condition>
void wait_while(Condition&& holds) {
  while (holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace cuda_double
