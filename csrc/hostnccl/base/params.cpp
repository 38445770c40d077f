#include "hostnccl/base/params.h"

#include <strings.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>

#include "common/per_process.h"
#include "hostnccl/kernels/reduce.h"

namespace hostnccl {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 40;

constexpr Param kParams[] = {
    {"HOSTNCCL_INIT_TIMEOUT", ParamType::Int64, false, 1, 1000000000, "300",
     "seconds within which all ranks of a communicator must join its rendezvous"},
    {"HOSTNCCL_CMA", ParamType::Bool, false, 0, 1, "TRUE",
     "whether ranks may read each other's buffers directly, between processes with "
     "process_vm_readv and within one by pointer; FALSE stages all data except that of collectives "
     "and one-sided operations in windows"},
    {"HOSTNCCL_ISA", ParamType::Text, true, 0, 0, nullptr,
     "newest instruction set that the reduction kernels may use: baseline, avx2 or avx512",
     "baseline avx2 avx512"},
    {"HOSTNCCL_SPIN_US", ParamType::Uint64, true, 0, kMaxBytes, "1000",
     "microseconds that a waiting rank spins before it sleeps"},
    {"HOSTNCCL_DIRECT_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "16777216",
     "minimum bytes of a rank's contribution for a collective to read it directly instead of "
     "staging it; the ranks use the largest of their values"},
    {"HOSTNCCL_DIRECT_BYTES_IN_PROCESS", ParamType::Uint64, true, 0, kMaxBytes, "16384",
     "HOSTNCCL_DIRECT_BYTES for a communicator whose ranks are all in one process", nullptr,
     ParamId::DirectBytes},
    {"HOSTNCCL_DIRECT_ALL_GATHER_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "16777216",
     "HOSTNCCL_DIRECT_BYTES for an all-gather", nullptr, ParamId::DirectBytes},
    {"HOSTNCCL_DIRECT_ROOTED_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "16777216",
     "HOSTNCCL_DIRECT_BYTES for a broadcast, a gather and a scatter", nullptr,
     ParamId::DirectBytes},
    {"HOSTNCCL_DIRECT_REDUCTION_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "16777216",
     "HOSTNCCL_DIRECT_BYTES for a collective that reduces", nullptr, ParamId::DirectBytes},
    {"HOSTNCCL_DIRECT_MESSAGE_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "16777216",
     "minimum bytes of a message to read it directly instead of sending it in pieces; messages of "
     "up to 8192 bytes are always copied"},
    {"HOSTNCCL_DIRECT_EXCHANGE_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "65536",
     "HOSTNCCL_DIRECT_MESSAGE_BYTES for a message in a group with other operations", nullptr,
     ParamId::DirectMessageBytes},
    {"HOSTNCCL_DIRECT_MESSAGE_BYTES_IN_PROCESS", ParamType::Uint64, true, 0, kMaxBytes, "0",
     "HOSTNCCL_DIRECT_MESSAGE_BYTES for a message between two ranks of one process", nullptr,
     ParamId::DirectMessageBytes},
    {"HOSTNCCL_WINDOW_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "131072",
     "HOSTNCCL_DIRECT_BYTES for a collective whose buffers lie in windows on all ranks"},
    {"HOSTNCCL_STREAM_BYTES", ParamType::Uint64, true, 0, kMaxBytes, "32768",
     "minimum bytes of a message, or of a block of a collective, to copy it into shared memory "
     "past the caches"},
    {"HOSTNCCL_TUNING", ParamType::Text, true, 0, 0, "default",
     "on: communicators measure the thresholds until they find the machine calm, once per boot; "
     "off: the defaults apply",
     "on off"},
    {"HOSTNCCL_TUNING_FILE", ParamType::Text, true, 0, 0, "",
     "file that stores the measurements; if empty, hostnccl-tuning in XDG_RUNTIME_DIR, else "
     "/tmp/hostnccl-tuning-UID"},
    {"HOSTNCCL_STRICT", ParamType::Bool, false, 0, 1, "FALSE",
     "whether a new communicator rejects what NCCL leaves undefined, and runs one-sided operations "
     "in NCCL's order; the ranks must agree"},
    {"HOSTNCCL_CONNECT", ParamType::Bool, false, 0, 1, "TRUE",
     "in strict mode: whether the first collective of a new communicator, and the first message "
     "between two ranks, wait for the calls of the other ranks, as in NCCL"},
    {"HOSTNCCL_DEADLOCK_MS", ParamType::Uint64, true, 0, 1000000000, "1000",
     "milliseconds after which a deadlock of ranks that wait for each other is an error; 0 never"},
    {"HOSTNCCL_DELAY_SEED", ParamType::Uint64, false, 0, UINT64_MAX, "0",
     "test mode: seed of the random pauses of threads and streams before their work; 0 is off"},
};
static_assert(std::size(kParams) == size_t(ParamId::DelaySeed) + 1);

const Param& row_of(ParamId id) { return kParams[static_cast<size_t>(id)]; }

std::optional<std::string> from_environment(const char* key) {
  const char* text = std::getenv(key);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

// The environment's text for a parameter.
std::optional<std::string> environment_text(ParamId id) {
  struct Cache {
    std::once_flag once;
    std::optional<std::string> text;
  };
  static Cache* const caches = new Cache[std::size(kParams)]{};  // outlives every thread
  const Param& param = row_of(id);
  if (!param.cached) return from_environment(param.key);
  Cache& cache = caches[static_cast<size_t>(id)];
  std::call_once(cache.once, [&] { cache.text = from_environment(param.key); });
  return cache.text;
}

// The parameter that supplies the value: this one, or the parent that it inherits from.
ParamId source_of(ParamId id) {
  const std::optional<ParamId> inherits = row_of(id).inherits;
  return inherits && !environment_text(id) ? *inherits : id;
}

std::optional<std::string> given_text(ParamId id) { return environment_text(source_of(id)); }

struct MeasuredTexts {
  std::mutex mutex;
  std::optional<std::string> texts[std::size(kParams)];
};

std::optional<std::string> measured_text(ParamId id) {
  auto& all = common::per_process<MeasuredTexts>();
  const std::lock_guard lock(all.mutex);
  return all.texts[static_cast<size_t>(id)];
}

std::string text_in_use(ParamId id) {
  if (const std::optional<std::string> given = given_text(id)) return *given;
  return measured_text(id).value_or(row_of(id).default_text);
}

[[noreturn]] void refuse(const Param& param, const std::string& text) {
  if (param.type == ParamType::Bool) {
    fail(abi::ncclInvalidArgument, "%s=%s is neither 1, T, TRUE nor 0, F, FALSE", param.key,
         text.c_str());
  }
  fail(abi::ncclInvalidArgument, "%s=%s is not a whole number from %llu to %llu", param.key,
       text.c_str(), static_cast<unsigned long long>(param.min),
       static_cast<unsigned long long>(param.max));
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
  if (!whole || value < param.min || value > param.max) refuse(param, text);
  return value;
}

}  // namespace

std::optional<std::string> given_choice(ParamId id) {
  const Param& param = row_of(id);
  std::optional<std::string> given = given_text(id);
  if (!given || param.choices == nullptr) return given;
  const bool is_word = given->find(' ') == std::string::npos;
  if (is_word && format(" %s ", param.choices).find(" " + *given + " ") != std::string::npos)
    return given;
  fail(abi::ncclInvalidArgument, "%s=%s is not one of: %s", param.key, given->c_str(),
       param.choices);
}

void check_params() {
  for (size_t i = 0; i < std::size(kParams); ++i) {
    const auto id = static_cast<ParamId>(i);
    if (kParams[i].type == ParamType::Text)
      given_choice(id);
    else
      param_number(id);
  }
}

std::span<const Param> all_params() { return kParams; }

const Param* find_param(const char* key) {
  const auto* found = std::find_if(std::begin(kParams), std::end(kParams),
                                   [key](const Param& p) { return std::strcmp(p.key, key) == 0; });
  return found == std::end(kParams) ? nullptr : found;
}

void set_measured(ParamId id, const std::string& text) {
  auto& all = common::per_process<MeasuredTexts>();
  const std::lock_guard lock(all.mutex);
  all.texts[static_cast<size_t>(id)] = text;
}

ParamSource param_source(ParamId id) {
  if (given_text(id)) return ParamSource::Environment;
  return measured_text(id) ? ParamSource::Measured : ParamSource::Default;
}

uint64_t default_number(ParamId id) { return parse_number(row_of(id), row_of(id).default_text); }

uint64_t param_number(ParamId id) {
  const Param& param = row_of(given_text(id) ? source_of(id) : id);  // whose key an error names
  const std::string text = text_in_use(id);
  return param.type == ParamType::Bool ? parse_bool(param, text) : parse_number(param, text);
}

std::string param_text(ParamId id) {
  if (row_of(id).type == ParamType::Bool) return param_number(id) != 0 ? "TRUE" : "FALSE";
  given_choice(id);
  // HOSTNCCL_ISA may name an instruction set that this CPU lacks.
  if (id == ParamId::Isa) return kernel_isa();
  // With "on", the measured values. With "off" there are none.
  if (const auto measured = measured_text(id); measured && id == ParamId::Tuning) return *measured;
  return row_of(id).type == ParamType::Text ? text_in_use(id) : std::to_string(param_number(id));
}

const char* type_name(ParamType type) {
  static constexpr const char* kNames[] = {"bool", "int64_t", "uint64_t", "const char*"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace hostnccl
