// Waits with a time limit: for a condition, and for a call that may not return in time, for example
// an NCCL call that waits for other ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
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

// Calls function on a new thread, which has no current device, and waits for at most the given
// seconds. Returns true if the function has returned, or rethrows its exception. Returns false if
// it takes longer, or a signal handler ended the wait of the main thread (Interrupt). The function
// then continues, and late is called on its thread afterwards, even if it throws.
bool run_within(double seconds, std::function<void()> function, std::function<void()> late = {});

}  // namespace pynccl
