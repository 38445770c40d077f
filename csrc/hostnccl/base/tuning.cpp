#include "hostnccl/base/tuning.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

#include "common/new_file.h"
#include "common/per_process.h"
#include "hostnccl/base/fd.h"
#include "hostnccl/base/keys.h"
#include "hostnccl/base/params.h"
#include "hostnccl/base/process.h"

namespace hostnccl {
namespace {

constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * kKiB;
constexpr double kNever = 1024 * 1024 * kMiB;  // the maximum of a parameter

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

// The size from which b takes less time than a. The time is linear in the size.
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

// A direct collective has more steps and ends with its slowest reader. A staged message is copied
// by two CPUs, a direct one by one.
constexpr double kDirectShare = 1.25;

// The size from which copies past the caches pay off. They take the same time wherever the two CPUs
// are. A copy through the caches takes up to twice as long after the host of a virtual machine has
// moved them apart, so it must be clearly faster.
double stream_from(const Measurements& measured) {
  constexpr double kStreamShare = 0.8;
  return crossing(total(measured, 0), times(total(measured, 1), kStreamShare));
}

// Whether blocks of kLarge are copied past the caches.
bool streams(const Measurements& measured) {
  return stream_from(measured) <= double(Measurements::kLarge);
}

Time direct_collective(const Measurements& measured) {
  return times(plus(measured.direct, 2 * measured.round_trip), kDirectShare);
}

// Thresholds derived from measurements, in bytes: see params.cpp.
struct Thresholds {
  uint64_t stream;
  uint64_t direct;
  uint64_t direct_all_gather;
  uint64_t direct_rooted;
  uint64_t direct_message;
  uint64_t direct_exchange;
};

Thresholds thresholds_of(const Measurements& measured) {
  // The measured sizes fit into the caches. From some MiB on, a direct read takes less time, from
  // smaller sizes on if every rank copies than if only one sends. All ranks read a staged block of
  // an all-gather from a cache.
  constexpr double kMostExchange = 4 * kMiB;
  constexpr double kMostShared = 32 * kMiB;

  const bool past_caches = streams(measured);
  const Time& message = measured.message[past_caches];
  const Time& exchange = measured.exchange[past_caches];
  const bool can_read = measured.direct.large != 0;
  const Time direct = plus(measured.direct, measured.round_trip);
  const Time collective = direct_collective(measured);
  const auto from = [can_read](const Time& staged, const Time& read, double least, double most) {
    return clamped(can_read ? crossing(staged, read) : kNever, least, most);
  };
  Thresholds found;
  found.stream =
      clamped(past_caches ? stream_from(measured) : kNever, double(Measurements::kSmall), kNever);
  found.direct = from(measured.blocks[past_caches], collective, 64 * kKiB, kMostExchange);
  found.direct_all_gather = from(measured.blocks[past_caches], collective, 64 * kKiB, kMostShared);
  found.direct_rooted = from(message, collective, 64 * kKiB, kMostShared);
  found.direct_message = from(message, times(direct, kDirectShare), 16 * kKiB, kMostShared);
  found.direct_exchange = from(exchange, direct, 16 * kKiB, kMostExchange);
  return found;
}

std::string time_text(int64_t seconds) {
  const time_t since_epoch = seconds;
  tm utc{};
  char text[32] = "";
  if (gmtime_r(&since_epoch, &utc) != nullptr)
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

std::string to_text(const Measurements& measured) {
  const auto one = [](const Time& time) {
    return format("%.1f/%.1f", time.small / 1000, time.large / 1000);
  };
  return format(
      "measured %s, spread %.1f%s: round trip of a line %.0f ns; us for 16/256 KiB: message %s, "
      "past the caches %s, exchange %s, past the caches %s, blocks %s, past the caches %s, direct "
      "%s",
      time_text(measured.seconds).c_str(), measured.spread, calm(measured) ? "" : " (disturbed)",
      measured.round_trip, one(measured.message[0]).c_str(), one(measured.message[1]).c_str(),
      one(measured.exchange[0]).c_str(), one(measured.exchange[1]).c_str(),
      one(measured.blocks[0]).c_str(), one(measured.blocks[1]).c_str(),
      one(measured.direct).c_str());
}

constexpr mode_t kPrivate = 0600;

// The file of measurements.
struct Content {
  char format[16];
  uint64_t boot;
  Measurements measured;
  Sha256::Digest checksum;  // of the fields before it
};

constexpr char kFormat[sizeof Content::format] = "hostnccl tune 2";

Sha256::Digest checksum_of(const Content& content) {
  Sha256 hash;
  hash.add(reinterpret_cast<const uint8_t*>(&content), offsetof(Content, checksum));
  return hash.finish();
}

std::string path() {
  std::string given = param_text(ParamId::TuningFile);
  if (!given.empty()) return given;
  if (const char* folder = secure_getenv("XDG_RUNTIME_DIR"); folder != nullptr && *folder == '/') {
    return std::string(folder) + "/hostnccl-tuning";
  }
  return format("/tmp/hostnccl-tuning-%u", static_cast<unsigned>(geteuid()));
}

bool is_ours(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & ~static_cast<mode_t>(S_IFMT)) == kPrivate && info.st_nlink == 1 &&
         info.st_size == static_cast<off_t>(sizeof(Content));
}

// See save_measurements().
std::optional<Measurements> load_measurements() {
  // O_NONBLOCK: a pipe or a device must not block. O_NOFOLLOW: a link may lead to another user's
  // choice of file.
  const Fd file(open(path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  Content content;
  if (!file || !is_ours(file.get()) ||
      read(file.get(), &content, sizeof content) != static_cast<ssize_t>(sizeof content)) {
    return std::nullopt;
  }
  if (std::memcmp(content.format, kFormat, sizeof kFormat) != 0 ||
      content.boot != boot_identity() || content.checksum != checksum_of(content) ||
      !plausible(content.measured) || !calm(content.measured)) {
    return std::nullopt;
  }
  return content.measured;
}

// The measurements that this process knows.
struct Known {
  std::mutex mutex;
  int attempts = 0;
  std::optional<Measurements> measured;
  bool has_calm() const { return measured && calm(*measured); }
};

struct MeasuredParam {
  ParamId id;
  uint64_t Thresholds::* value;
};

constexpr MeasuredParam kMeasured[] = {
    {ParamId::StreamBytes, &Thresholds::stream},
    {ParamId::DirectBytes, &Thresholds::direct},
    {ParamId::DirectAllGatherBytes, &Thresholds::direct_all_gather},
    {ParamId::DirectRootedBytes, &Thresholds::direct_rooted},
    {ParamId::DirectMessageBytes, &Thresholds::direct_message},
    {ParamId::DirectExchangeBytes, &Thresholds::direct_exchange},
};

void set_known(Known& all, const Measurements& measured) {
  all.measured = measured;
  const Thresholds found = thresholds_of(measured);
  for (const MeasuredParam& param : kMeasured) {
    set_measured(param.id, std::to_string(found.*param.value));
  }
  set_measured(ParamId::Tuning, to_text(measured));
}

bool tuning_enabled() { return given_choice(ParamId::Tuning).value_or("on") == "on"; }

}  // namespace

std::chrono::microseconds spin_time() {
  static const std::chrono::microseconds time(param_number(ParamId::SpinUs));
  return time;
}

bool direct_reads_allowed() { return param_number(ParamId::Cma) != 0; }

bool plausible(const Measurements& measured) {
  const bool can_read = measured.direct.large != 0;
  const auto all = [](const Time(&times)[2]) { return plausible(times[0]) && plausible(times[1]); };
  return measured.round_trip >= 5 && measured.round_trip <= 2000 &&
         (!can_read || plausible(measured.direct)) && all(measured.message) &&
         all(measured.exchange) && all(measured.blocks) && measured.spread >= 1;
}

bool calm(const Measurements& measured) {
  // Half of the samples lie within the factor by which one path must be faster than another.
  return measured.spread <= kDirectShare * kDirectShare;
}

std::optional<Measurements> known_measurements() {
  if (!tuning_enabled()) return std::nullopt;
  auto& all = common::per_process<Known>();
  const std::lock_guard lock(all.mutex);
  if (!all.has_calm()) {  // another process may have stored calm ones
    if (const std::optional<Measurements> found = load_measurements()) set_known(all, *found);
  }
  return all.measured;
}

bool measurement_wanted() {
  constexpr int kMostAttempts = 3;
  if (!tuning_enabled()) return false;
  known_measurements();
  auto& all = common::per_process<Known>();
  const std::lock_guard lock(all.mutex);
  return !all.has_calm() && all.attempts++ < kMostAttempts;
}

void adopt_measurements(const Measurements& measured) {
  if (!tuning_enabled()) return;
  auto& all = common::per_process<Known>();
  const std::lock_guard lock(all.mutex);
  if (!all.measured || (!all.has_calm() && measured.spread < all.measured->spread)) {
    set_known(all, measured);
  }
}

Tuning tuning_from(const std::optional<Measurements>& measured, bool within_process) {
  std::optional<Thresholds> found;
  if (measured) found = thresholds_of(*measured);
  const auto value = [&found](ParamId id) -> size_t {
    for (const MeasuredParam& param : kMeasured) {
      if (param.id != id || param_source(id) == ParamSource::Environment) continue;
      return found ? (*found).*param.value : default_number(id);
    }
    return param_number(id);
  };
  Tuning tuning;
  const size_t in_process = value(ParamId::DirectBytesInProcess);
  constexpr ParamId kDirect[kPatterns] = {ParamId::DirectBytes, ParamId::DirectAllGatherBytes,
                                          ParamId::DirectRootedBytes,
                                          ParamId::DirectReductionBytes};
  for (size_t i = 0; i < kPatterns; ++i) {
    const size_t between_processes = value(kDirect[i]);
    tuning.direct[i] = within_process ? in_process : between_processes;
  }
  tuning.window = value(ParamId::WindowBytes);
  tuning.message = value(ParamId::DirectMessageBytes);
  tuning.exchange = value(ParamId::DirectExchangeBytes);
  const auto unless_given = [](size_t bytes, std::initializer_list<ParamId> ids) {
    const auto given = [](ParamId id) { return param_source(id) == ParamSource::Environment; };
    return std::any_of(ids.begin(), ids.end(), given) ? SIZE_MAX : bytes;
  };
  const auto message = {ParamId::DirectMessageBytes, ParamId::DirectExchangeBytes};
  tuning.message_contended[false] = unless_given(size_t{16} << 20, message);
  tuning.message_contended[true] =
      unless_given(size_t{512} << 10, message);  // some fills of a ring
  tuning.rooted_contended = unless_given(size_t{4} << 20, {ParamId::DirectRootedBytes});
  tuning.message_in_process = value(ParamId::DirectMessageBytesInProcess);
  tuning.stream = value(ParamId::StreamBytes);
  return tuning;
}

std::optional<PathTimes> path_times(const Measurements& measured, Pattern pattern,
                                    size_t contribution) {
  if (pattern == Pattern::Reduction) return std::nullopt;
  const bool past_caches = streams(measured);
  const Time& staged =
      pattern == Pattern::Rooted ? measured.message[past_caches] : measured.blocks[past_caches];
  const auto at = [&](const Time& time) {
    const double more = double(contribution) - double(Measurements::kSmall);
    return std::max(measured.round_trip, time.small + more * per_byte(time));
  };
  const bool can_read = measured.direct.large != 0;
  return PathTimes{at(staged), can_read ? at(direct_collective(measured)) : 0};
}

void save_measurements(const Measurements& measured) {
  if (!calm(measured)) return;
  Content content{};
  std::memcpy(content.format, kFormat, sizeof kFormat);
  content.boot = boot_identity();
  content.measured = measured;
  content.checksum = checksum_of(content);
  try {
    common::NewFile file(path(), kPrivate);
    file.write_all({reinterpret_cast<const char*>(&content), sizeof content});
    file.publish();
  } catch (const std::system_error&) {  // another user may have taken the name
  }
}

}  // namespace hostnccl
