#include "hostnccl/base/params.h"

#include <strings.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>

#include "hostnccl/kernels/reduce.h"

namespace hostnccl {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 40;

constexpr Param kParams[] = {
    {"HOSTNCCL_INIT_TIMEOUT", ParamType::Int64, false, 1, 1000000000, "300",
     "seconds that the ranks of a communicator may take to meet"},
    {"HOSTNCCL_CMA", ParamType::Bool, false, 0, 1, "TRUE",
     "whether data may be read out of the memory of other processes"},
    {"HOSTNCCL_ISA", ParamType::Text, true, 0, 0, nullptr,
     "the instruction set of the reductions: no newer one than this, where the CPU has it"},
    {"HOSTNCCL_SPIN_US", ParamType::Uint64, true, 0, kMostBytes, "1000",
     "microseconds that a waiting rank stays awake before it sleeps"},
    {"HOSTNCCL_DIRECT_BYTES", ParamType::Uint64, true, 0, kMostBytes, "16777216",
     "bytes of a rank's contribution from which on a collective reads it where it is (within one "
     "process 16384)"},
    {"HOSTNCCL_DIRECT_MESSAGE_BYTES", ParamType::Uint64, true, 0, kMostBytes, "8388608",
     "the same for a message above 8192 bytes (with more ranks than CPUs 49152, within one process "
     "always)"},
    {"HOSTNCCL_WINDOW_BYTES", ParamType::Uint64, true, 0, kMostBytes, "131072",
     "bytes of a rank's contribution from which on a collective reads it where it is if it lies in "
     "windows on all ranks"},
    {"HOSTNCCL_DELAY_SEED", ParamType::Uint64, false, 0, UINT64_MAX, "0",
     "a test mode: threads and streams pause at random, drawn from this seed, before they work; 0 "
     "is "
     "off"},
};
static_assert(std::size(kParams) == size_t(Setting::DelaySeed) + 1);

std::optional<std::string> from_environment(const char* key) {
  const char* text = std::getenv(key);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

// What the environment gives for a setting.
std::optional<std::string> given(Setting setting) {
  struct Cache {
    std::once_flag once;
    std::optional<std::string> text;
  };
  static Cache* const caches = new Cache[std::size(kParams)]{};
  const auto index = static_cast<size_t>(setting);
  if (!kParams[index].cached) return from_environment(kParams[index].key);
  Cache& cache = caches[index];
  std::call_once(cache.once, [&] { cache.text = from_environment(kParams[index].key); });
  return cache.text;
}

[[noreturn]] void refuse(const Param& param, const std::string& text) {
  if (param.type == ParamType::Bool) {
    fail(abi::ncclInvalidArgument, "%s=%s is neither 1, T, TRUE nor 0, F, FALSE", param.key,
         text.c_str());
  }
  fail(abi::ncclInvalidArgument, "%s=%s is not a whole number from %llu to %llu", param.key,
       text.c_str(), static_cast<unsigned long long>(param.least),
       static_cast<unsigned long long>(param.most));
}

uint64_t parse_bool(const Param& param, const std::string& text) {
  const auto is_one_of = [&text](auto... names) {
    return (... || (strcasecmp(text.c_str(), names) == 0));
  };
  if (is_one_of("1", "T", "TRUE")) return 1;
  if (is_one_of("0", "F", "FALSE")) return 0;
  refuse(param, text);
}

uint64_t parse_number(const Param& param, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  const bool whole = text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
  if (!whole || value < param.least || value > param.most) refuse(param, text);
  return value;
}

}  // namespace

std::span<const Param> all_params() { return kParams; }

const Param* find_param(const char* key) {
  const auto* found = std::find_if(std::begin(kParams), std::end(kParams),
                                   [key](const Param& p) { return std::strcmp(p.key, key) == 0; });
  return found == std::end(kParams) ? nullptr : found;
}

bool is_given(Setting setting) { return given(setting).has_value(); }

uint64_t number(Setting setting) {
  const Param& param = kParams[static_cast<size_t>(setting)];
  const std::string text = given(setting).value_or(param.fallback);
  return param.type == ParamType::Bool ? parse_bool(param, text) : parse_number(param, text);
}

std::string text(Setting setting) {
  switch (kParams[static_cast<size_t>(setting)].type) {
    case ParamType::Bool:
      return number(setting) != 0 ? "TRUE" : "FALSE";
    case ParamType::Text:  // there is one: what was chosen says more than what was wished for
      return kernel_isa();
    default:
      return std::to_string(number(setting));
  }
}

const char* type_name(ParamType type) {
  static constexpr const char* kNames[] = {"bool", "int64_t", "uint64_t", "const char*"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace hostnccl
