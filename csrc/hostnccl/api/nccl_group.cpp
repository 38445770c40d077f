// NCCL's C API: groups and their simulation.
#include <cstddef>
#include <optional>

#include "hostnccl/api/nccl_api.h"

using namespace hostnccl;

namespace {

// The error of an ncclSimInfo_t that was not initialized. Null is allowed.
std::optional<Error> check_sim_info(const ncclSimInfo_t* info) {
  constexpr size_t kSmallest = offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float);
  if (info == nullptr || (info->magic == kSimInfoMagic && info->size >= kSmallest)) return {};
  return Error(ncclInvalidArgument, "simInfo was not initialized with NCCL_SIM_INFO_INITIALIZER");
}

}  // namespace

extern "C" {

ncclResult_t ncclGroupStart() {
  return guarded([] { Group::current().start(); });
}

ncclResult_t ncclGroupEnd() {
  return guarded([] { return Group::current().end(); });
}

// The group ends even if simInfo is invalid, as in NCCL.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  return guarded([=] {
    const std::optional<Error> info_error = check_sim_info(simInfo);
    Group& group = Group::current();
    if (info_error && group.active()) group.set_error(*info_error);
    const std::optional<double> microseconds = group.end_simulated();
    if (info_error) throw *info_error;
    if (microseconds && simInfo != nullptr) {
      simInfo->estimatedTime = static_cast<float>(*microseconds);
    }
  });
}

}  // extern "C"
