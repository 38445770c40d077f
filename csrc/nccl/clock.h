// The clocks of the monitor and the flight recorder, in nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace pynccl {

// clock_gettime without the C library's lookup in each call.
extern decltype(&clock_gettime) kernel_clock;

inline std::int64_t time_of(clockid_t clock) noexcept {
  timespec time;
  kernel_clock(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Has a resolution of a few milliseconds and costs a fraction of the precise clock.
inline std::int64_t coarse_time() noexcept { return time_of(CLOCK_MONOTONIC_COARSE); }

inline std::int64_t precise_time() noexcept { return time_of(CLOCK_MONOTONIC); }

// The offset from a time of these clocks to nanoseconds since the epoch.
inline std::int64_t epoch_of_clock() noexcept { return time_of(CLOCK_REALTIME) - precise_time(); }

}  // namespace pynccl
