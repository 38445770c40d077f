#include "hostnccl/base/tuning.h"

#include <mutex>
#include <string>

#include "hostnccl/base/params.h"
#include "hostnccl/base/tuning_file.h"

namespace hostnccl {
namespace {

struct Known {
  std::mutex mutex;
  bool file_read = false;
  int attempts = 0;
  std::optional<Measurements> measured;
};

Known& known() {
  static Known& instance = *new Known;  // outlives every thread
  return instance;
}

struct MeasuredParam {
  ParamId id;
  uint64_t Thresholds::* value;
};

constexpr MeasuredParam kMeasured[] = {
    {ParamId::StreamBytes, &Thresholds::stream},
    {ParamId::DirectBytes, &Thresholds::direct},
    {ParamId::DirectRootedBytes, &Thresholds::direct_rooted},
    {ParamId::DirectMessageBytes, &Thresholds::direct_message},
    {ParamId::DirectExchangeBytes, &Thresholds::direct_exchange},
};

void keep(Known& all, const Measurements& measured) {
  all.measured = measured;
  const Thresholds found = thresholds_of(measured);
  for (const MeasuredParam& param : kMeasured) {
    set_measured(param.id, std::to_string(found.*param.value));
  }
  set_measured(ParamId::Tuning, "measured: " + to_text(measured));
}

bool tuning_enabled() { return given_choice(ParamId::Tuning).value_or("on") == "on"; }

}  // namespace

std::chrono::microseconds spin_time() {
  static const std::chrono::microseconds time(param_number(ParamId::SpinUs));
  return time;
}

std::optional<Measurements> known_measurements() {
  if (!tuning_enabled()) return std::nullopt;
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  if (!all.measured && !all.file_read) {
    all.file_read = true;
    if (const std::optional<Measurements> found = load_measurements()) keep(all, *found);
  }
  return all.measured;
}

bool measurement_wanted() {
  constexpr int kMostAttempts = 3;
  if (!tuning_enabled() || known_measurements()) return false;
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  return all.attempts++ < kMostAttempts;
}

void adopt_measurements(const Measurements& measured) {
  if (!tuning_enabled()) return;
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  if (!all.measured) keep(all, measured);
}

Tuning tuning_from(const std::optional<Measurements>& measured, bool within_process,
                   bool oversubscribed) {
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
  constexpr ParamId kDirect[kPatterns] = {ParamId::DirectBytes, ParamId::DirectRootedBytes,
                                          ParamId::DirectReductionBytes};
  for (size_t i = 0; i < kPatterns; ++i) {
    const size_t between_processes = value(kDirect[i]);
    tuning.direct[i] = within_process ? in_process : between_processes;
  }
  tuning.window = value(ParamId::WindowBytes);
  tuning.message = value(ParamId::DirectMessageBytes);
  tuning.exchange = value(ParamId::DirectExchangeBytes);
  const size_t when_oversubscribed = value(ParamId::DirectMessageBytesOversubscribed);
  if (oversubscribed) tuning.message = tuning.exchange = when_oversubscribed;
  tuning.message_in_process = value(ParamId::DirectMessageBytesInProcess);
  tuning.stream = value(ParamId::StreamBytes);
  return tuning;
}

}  // namespace hostnccl
