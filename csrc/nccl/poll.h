// poll_until(): waits for a condition by polling.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

namespace pynccl {

// Calls done() until it returns true, with pauses growing from 1 us to 1 ms. Returns false after
// the given seconds.
template <class Done>
bool poll_until(std::optional<double> seconds, Done&& done) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto pause = std::chrono::microseconds(1);
  while (!done()) {
    if (seconds && std::chrono::duration<double>(Clock::now() - start).count() >= *seconds)
      return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(1000));
  }
  return true;
}

}  // namespace pynccl
