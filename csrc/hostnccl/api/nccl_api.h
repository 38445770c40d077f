// Declarations of NCCL's C API, for the files that define it (nccl_*.cpp), and their guard. The
// declarations are generated from the list of entry points, so a wrong signature does not compile.
// The linker adds the profiling names, pnccl*: profiling_names.ld.in.
#pragma once

#include "hostnccl/api/unsupported.h"
#include "hostnccl/group/group.h"

using namespace pynccl::abi;  // nccl.h declares its names in the global namespace

#include "abi/c_params.inc"
#define FUNCTION(since, result, name, ...) \
  HOSTNCCL_IF_SUPPORTED(name, extern "C" [[gnu::visibility("default")]] result name(__VA_ARGS__);)
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"

namespace hostnccl {

// guarded(), for functions that take part in a group. An error in an open group is also the error
// of the group: ncclGroupEnd returns it and starts nothing.
template <typename Body>
abi::ncclResult_t group_guarded(Body&& body) noexcept {
  return guarded([&body] {
    try {
      return body();
    } catch (...) {
      Group& group = Group::current();
      if (group.active()) group.set_error(current_error());
      throw;
    }
  });
}

}  // namespace hostnccl
