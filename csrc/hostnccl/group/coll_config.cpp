#include "hostnccl/group/coll_config.h"

#include <strings.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace hostnccl {
namespace {

constexpr unsigned bit(Path path) { return 1U << static_cast<unsigned>(path); }

constexpr Path kPaths[] = {Path::Staged, Path::Direct};
constexpr unsigned kAllPaths = bit(Path::Staged) | bit(Path::Direct);

bool same_name(std::string_view a, const char* b) {
  return a.size() == std::strlen(b) && strncasecmp(a.data(), b, a.size()) == 0;
}

// The paths that an algSelection allows, as bits: "direct", "staged,direct", or "^direct" for all
// others. 0 if a name is unknown.
unsigned selected_paths(std::string_view selection) {
  const bool excludes = selection.starts_with('^');
  if (excludes) selection.remove_prefix(1);
  unsigned paths = 0;
  for (;;) {
    const size_t comma = std::min(selection.find(','), selection.size());
    const std::string_view name = selection.substr(0, comma);
    const auto* found = std::find_if(std::begin(kPaths), std::end(kPaths),
                                     [&](Path path) { return same_name(name, name_of(path)); });
    if (found == std::end(kPaths)) return 0;
    paths |= bit(*found);
    if (comma == selection.size()) break;
    selection.remove_prefix(comma + 1);
  }
  return excludes ? kAllPaths & ~paths : paths;
}

Path select_path(const abi::ncclCollConfig_t& config, Kind kind, const Communicator& comm) {
  if (config.algSelection == nullptr || *config.algSelection == '\0') return Path::Any;
  unsigned paths = selected_paths(config.algSelection);
  if (comm.nranks() > 1 && !comm.segment().supports_direct()) paths &= ~bit(Path::Direct);
  if (paths == bit(Path::Staged)) return Path::Staged;
  if (paths == bit(Path::Direct)) return Path::Direct;
  if (paths == 0 && config.forceAlgSelection == 1) {
    fail(abi::ncclInvalidArgument,
         "config->algSelection=\"%s\" is not available for %s: hostnccl has \"staged\" and, where "
         "ranks can read each other's memory, \"direct\"; forceAlgSelection=0 allows a fallback",
         config.algSelection, traits_of(kind).name);
  }
  return Path::Any;
}

Ref<Event> find_event(abi::cudaEvent_t handle) {
  if (handle == nullptr) return {};
  Ref<Event> event = events().find(handle);
  if (!event || !event->is_of_this_process()) {
    fail(abi::ncclInvalidArgument,
         "config->launchCompletionEvent=%p is not an event of hostnccl, created by "
         "hostEventCreate",
         static_cast<void*>(handle));
  }
  if (event->timing()) {
    fail(abi::ncclInvalidArgument,
         "config->launchCompletionEvent=%p was created with timing: NCCL requires "
         "CU_EVENT_DISABLE_TIMING",
         static_cast<void*>(handle));
  }
  return event;
}

}  // namespace

CollConfig read_coll_config(const abi::ncclCollConfig_t* given, Kind kind,
                            const Communicator& comm) {
  if (given == nullptr) return {};
  // The first version of the struct, in NCCL 2.31, ended before this field.
  constexpr size_t kSmallest = offsetof(abi::ncclCollConfig_t, launchCompletionEvent);
  constexpr size_t kLargest = size_t{1} << 16;  // a larger size was never initialised
  if (given->size < kSmallest || given->size > kLargest) {
    fail(abi::ncclInvalidArgument, "config->size=%zu is not the size of an ncclCollConfig_t",
         given->size);
  }
  if (given->magic != abi::kApiMagic) {
    fail(abi::ncclInvalidArgument,
         "config->magic=%#x: it was not initialised with NCCL_COLLCONFIG_INITIALIZER",
         given->magic);
  }
  abi::ncclCollConfig_t config;  // fields missing in an older struct keep their defaults
  std::memcpy(static_cast<void*>(&config), given, std::min(given->size, sizeof config));
  if (config.forceAlgSelection != 0 && config.forceAlgSelection != 1) {
    fail(abi::ncclInvalidArgument, "config->forceAlgSelection=%d is neither 0 nor 1",
         config.forceAlgSelection);
  }
  constexpr int kPolicies = 0x03;  // all NCCL_CTA_POLICY_* flags
  if (config.CTAPolicy != abi::kUndefInt && (config.CTAPolicy & ~kPolicies) != 0) {
    fail(abi::ncclInvalidArgument,
         "config->CTAPolicy=%d is not a combination of NCCL_CTA_POLICY_* flags", config.CTAPolicy);
  }
  return {select_path(config, kind, comm), config.userProfilerTag,
          find_event(config.launchCompletionEvent)};
}

}  // namespace hostnccl
