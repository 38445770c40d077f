// Generates a no-op function for every entry point of the lists. It returns success and writes a
// harmless value through its output pointers. All are weak, and answers.cpp overrides those whose
// results matter.
#include <cstddef>
#include <type_traits>

#include "abi/each_parameter.h"
#include "noop/exports.h"

namespace pynccl::abi {
namespace {

// The target of all handles.
alignas(std::max_align_t) char handle_target[64];

template <class Result>
Result done() {
  if constexpr (std::is_same_v<Result, const char*>) {
    return "no-op";
  } else {
    return Result();
  }
}

template <class T>
void fill(T* out) {
  if (out == nullptr) return;
  if constexpr (std::is_same_v<T, const char*>) {
    *out = "";
  } else if constexpr (std::is_pointer_v<T>) {
    *out = reinterpret_cast<T>(handle_target);
  } else {
    *out = T();
  }
}

template <class T>
void fill_array(T* out, int count) {
  if (out == nullptr) return;
  for (int i = 0; i < count; ++i) fill(out + i);
}

}  // namespace

// Writes the output of a parameter.
#define FILL(parameter) FILL_##parameter
#define FILL_IN(T, name) static_cast<void>(name)
#define FILL_OUT(T, name) fill(name)
#define FILL_OUTS(T, name, n) fill_array(name, n)
#define FILL_ARRAY(T, name, n) static_cast<void>(name)
#define FILL_STRUCT(T, name) static_cast<void>(name)
#define FILL_INOUT(T, name) static_cast<void>(name)
#define FILL_FILLED(T, name) static_cast<void>(name)
#define FILL_BUFFER(name, size, n) static_cast<void>(name)
#define FILL_STRINGS(name, n) fill(name)

#define DEFINE(result, name, ...)                                    \
  __attribute__((weak)) result name(ABI_DECLARATIONS(__VA_ARGS__)) { \
    ABI_EACH(FILL, __VA_ARGS__);                                     \
    return done<result>();                                           \
  }

extern "C" {

#define FUNCTION(since, result, name, ...) DEFINE(result, name, __VA_ARGS__)
#include "abi/nccl_functions.inc"
#undef FUNCTION

#define FUNCTION(symbol, result, name, ...) DEFINE(result, host##name, __VA_ARGS__)
#include "abi/driver_functions.inc"
#undef FUNCTION

}  // extern "C"

}  // namespace pynccl::abi
