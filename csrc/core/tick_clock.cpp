#include "core/tick_clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pynccl {

const bool TickClock::constant_rate_ = [] {
#if defined(__x86_64__)
  constexpr unsigned kPowerManagement = 0x80000007, kInvariant = 1u << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(kPowerManagement, &a, &b, &c, &d) != 0 && (d & kInvariant) != 0;
#else
  return false;
#endif
}();

// The best of a few: the process may be interrupted between the two.
TickClock::Pair TickClock::now() {
  Pair best{};
  for (std::int64_t shortest = INT64_MAX, i = 0; i < 4; ++i) {
    const std::int64_t began = ticks();
    const std::int64_t time = precise_time();
    const std::int64_t length = ticks() - began;
    if (length >= shortest) continue;
    shortest = length;
    best = {began + length / 2, time};
  }
  return best;
}

std::int64_t TickClock::time_of(std::int64_t ticks) const {
  if (last_.ticks <= before_.ticks) return last_.time;
  const double rate = static_cast<double>(last_.time - before_.time) /
                      static_cast<double>(last_.ticks - before_.ticks);
  return before_.time +
         static_cast<std::int64_t>(static_cast<double>(ticks - before_.ticks) * rate);
}

}  // namespace pynccl
