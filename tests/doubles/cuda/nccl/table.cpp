#include "nccl/table.h"

#include <dlfcn.h>

#include "driver/engine.h"

namespace cuda_double {

const Table& nccl() {
  static const Table table = [] {
    Table made;
#define FUNCTION(since, result, name, ...) \
  made.name = reinterpret_cast<decltype(made.name)>(dlsym(engine().handle, #name));
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
    // The double implements calls of non-blocking communicators, by version.
    using SetStrictCalls = void (*)(int on);
    const auto set = reinterpret_cast<SetStrictCalls>(dlsym(engine().handle, "hostSetStrictCalls"));
    if (set != nullptr) set(0);
    return made;
  }();
  return table;
}

}  // namespace cuda_double
