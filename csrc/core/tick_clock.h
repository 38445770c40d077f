// TickClock: the processor's counter, and what turns its values into nanoseconds of precise_time().
// Reading the counter costs half of what precise_time() does.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "core/clock.h"

namespace pynccl {

class TickClock {
 public:
  [[gnu::always_inline]] static std::int64_t ticks() noexcept {
#if defined(__x86_64__)
    if (constant_rate_) [[likely]]
      return static_cast<std::int64_t>(__rdtsc());
#endif
    return precise_time();
  }

  TickClock() : before_(now()), last_(before_) {}

  // To be called at times; time_of() is for values between the last two calls.
  void update() {
    before_ = last_;
    last_ = now();
  }
  std::int64_t time_of(std::int64_t ticks) const;

 private:
  struct Pair {
    std::int64_t ticks, time;
  };

  static Pair now();

  static const bool constant_rate_;

  Pair before_, last_;
};

}  // namespace pynccl
