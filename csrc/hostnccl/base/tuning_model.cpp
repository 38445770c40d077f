#include "hostnccl/base/tuning_model.h"

#include <algorithm>
#include <cmath>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * kKiB;
constexpr double kNever = 1024 * kMiB * 1024;  // the maximum of a parameter

using Time = Measurements::Time;

Time plus(const Time& a, double ns) { return {a.small + ns, a.large + ns}; }
Time times(const Time& a, double factor) { return {a.small * factor, a.large * factor}; }
Time total(const Measurements& measured, int streams) {
  const Time &a = measured.message[streams], &b = measured.exchange[streams],
             &c = measured.blocks[streams];
  return {a.small + b.small + c.small, a.large + b.large + c.large};
}
double per_byte(const Time& a) {
  return (a.large - a.small) / double(Measurements::kLarge - Measurements::kSmall);
}

// The size from which b takes less time than a, both being linear in the size.
double crossing(const Time& a, const Time& b) {
  const double gain = per_byte(a) - per_byte(b);
  if (gain <= 0) return kNever;
  return std::max(0.0, double(Measurements::kSmall) + (b.small - a.small) / gain);
}

uint64_t clamped(double bytes, double least, double most) {
  return static_cast<uint64_t>(std::clamp(bytes, least, most)) / 1024 * 1024;
}

bool plausible(const Time& time) {
  constexpr double kLeast = double(Measurements::kLarge) / 500;  // 500 GB/s
  constexpr double kMost = 1e6;
  return time.small > 0 && time.large > time.small && time.large >= kLeast && time.large <= kMost;
}

}  // namespace

bool plausible(const Measurements& measured) {
  const bool can_read = measured.direct.large != 0;
  const auto all = [](const Time(&times)[2]) { return plausible(times[0]) && plausible(times[1]); };
  return measured.round_trip >= 5 && measured.round_trip <= 2000 &&
         (!can_read || plausible(measured.direct)) && all(measured.message) &&
         all(measured.exchange) && all(measured.blocks);
}

Thresholds thresholds_of(const Measurements& measured) {
  // A copy past the caches takes the same time wherever the two CPUs are. A copy through the caches
  // takes up to twice as long when the host of a virtual machine has moved them apart. The latter
  // must therefore be clearly faster.
  constexpr double kStreamShare = 0.8;
  // A direct collective has more steps and ends when the slowest reader has read everything; in a
  // single message two CPUs copy pieces, one reads directly. The measured sizes fit into the
  // caches: from some MiB on, a direct read takes less time, and from smaller sizes on if every
  // rank copies than if one sends.
  constexpr double kDirectShare = 1.25;
  constexpr double kMostExchange = 4 * kMiB;
  constexpr double kMostFromOne = 32 * kMiB;

  const double stream = crossing(total(measured, 0), times(total(measured, 1), kStreamShare));
  const bool streams = stream <= double(Measurements::kLarge);
  const Time& message = measured.message[streams];
  const Time& exchange = measured.exchange[streams];
  const bool can_read = measured.direct.large != 0;
  const Time direct = plus(measured.direct, measured.round_trip);
  const Time collective = times(plus(direct, measured.round_trip), kDirectShare);
  const auto from = [can_read](const Time& staged, const Time& read, double least, double most) {
    return clamped(can_read ? crossing(staged, read) : kNever, least, most);
  };
  Thresholds found;
  found.stream = clamped(streams ? stream : kNever, double(Measurements::kSmall), kNever);
  found.direct = from(measured.blocks[streams], collective, 64 * kKiB, kMostExchange);
  found.direct_rooted = from(message, collective, 64 * kKiB, kMostFromOne);
  found.direct_message = from(message, times(direct, kDirectShare), 16 * kKiB, kMostFromOne);
  found.direct_exchange = from(exchange, direct, 16 * kKiB, kMiB);
  return found;
}

std::string to_text(const Measurements& measured) {
  const auto one = [](const Time& time) {
    return format("%.1f/%.1f", time.small / 1000, time.large / 1000);
  };
  return format(
      "round trip of a line %.0f ns; us for 16/256 KiB: message %s, past the caches %s, exchange "
      "%s, past the caches %s, blocks %s, past the caches %s, direct %s",
      measured.round_trip, one(measured.message[0]).c_str(), one(measured.message[1]).c_str(),
      one(measured.exchange[0]).c_str(), one(measured.exchange[1]).c_str(),
      one(measured.blocks[0]).c_str(), one(measured.blocks[1]).c_str(),
      one(measured.direct).c_str());
}

}  // namespace hostnccl
