#include "hostnccl/base/tuning.h"

#include <optional>

#include "hostnccl/base/params.h"

namespace hostnccl {
namespace {

std::optional<size_t> given_number(Setting setting) {
  if (!is_given(setting)) return std::nullopt;
  return number(setting);
}

}  // namespace

void read_tuning() {
  spin_time();
  direct_bytes(false);
  window_bytes();
  direct_message_bytes(false, false);
  number(Setting::Cma);
}

std::chrono::microseconds spin_time() {
  static const std::chrono::microseconds time(number(Setting::SpinUs));
  return time;
}

size_t direct_bytes(bool within_process) {
  static const std::optional<size_t> given = given_number(Setting::DirectBytes);
  return given.value_or(within_process ? size_t{16} << 10 : size_t{16} << 20);
}

size_t window_bytes() {
  static const size_t bytes = number(Setting::WindowBytes);
  return bytes;
}

size_t direct_message_bytes(bool within_process, bool oversubscribed) {
  static const std::optional<size_t> given = given_number(Setting::DirectMessageBytes);
  if (given) return *given;
  if (within_process) return 0;
  return oversubscribed ? size_t{48} << 10 : size_t{8} << 20;
}

}  // namespace hostnccl
