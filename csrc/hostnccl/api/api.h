// What the files of NCCL's C API begin with: every function, declared from the list of entry
// points, so that a wrong signature does not compile, and the guard that each body runs in. The
// linker gives each of them its profiling name, with a p in front: see profiling_names.ld.in.
#pragma once

#include "hostnccl/api/unsupported.h"
#include "hostnccl/group/group.h"

using namespace pynccl::abi;  // nccl.h has its names in the global namespace

#include "abi/c_params.inc"
#define FUNCTION(since, result, name, ...) \
  HOSTNCCL_IF_SUPPORTED(name, extern "C" [[gnu::visibility("default")]] result name(__VA_ARGS__);)
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"

namespace hostnccl {

// An error within a group is also the group's: ncclGroupEnd returns it and starts nothing.
template <typename Body>
abi::ncclResult_t checked(Body&& body) noexcept {
  return guarded([&body] {
    try {
      return body();
    } catch (...) {
      Group& group = Group::of_this_thread();
      if (group.active()) group.note_failure(current_error());
      throw;
    }
  });
}

}  // namespace hostnccl
