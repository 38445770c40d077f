#include "hostnccl/tuning.h"

#include <cerrno>
#include <cstdlib>
#include <optional>

#include "hostnccl/error.h"

namespace hostnccl {
namespace {

constexpr size_t kMost = size_t{1} << 40;

std::optional<size_t> from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*text == '-' || *end != '\0' || errno != 0 || value > kMost) {
    fail(abi::ncclInvalidArgument, "%s=%s is not a whole number from 0 to %zu", name, text, kMost);
  }
  return value;
}

}  // namespace

void read_tuning() {
  awake_time();
  direct_bytes(false);
  direct_message_bytes(false, false);
}

std::chrono::microseconds awake_time() {
  static const std::chrono::microseconds time(from_environment("HOSTNCCL_SPIN_US").value_or(1000));
  return time;
}

size_t direct_bytes(bool within_process) {
  static const std::optional<size_t> given = from_environment("HOSTNCCL_DIRECT_BYTES");
  return given.value_or(within_process ? size_t{16} << 10 : size_t{16} << 20);
}

size_t direct_message_bytes(bool within_process, bool crowded) {
  static const std::optional<size_t> given = from_environment("HOSTNCCL_DIRECT_MESSAGE_BYTES");
  if (given) return *given;
  if (within_process) return 0;
  return crowded ? size_t{48} << 10 : size_t{8} << 20;
}

}  // namespace hostnccl
