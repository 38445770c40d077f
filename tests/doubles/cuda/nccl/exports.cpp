// The exported functions of libnccl.so.2, from the list. Each records its call and calls its
// function in calls.h. Older versions export fewer of them.
#include "driver/record.h"
#include "nccl/calls.h"
#include "parameters.h"

using namespace cuda_double;

#define FUNCTION(since, result, name, ...)                                               \
  extern "C" [[gnu::visibility("default")]] result name(ABI_DECLARATIONS(__VA_ARGS__)) { \
    return recorded(#name, [&] {                                                         \
      return Call<&Table::name>::run(#name __VA_OPT__(, DOUBLE_NAMES(__VA_ARGS__)));     \
    } __VA_OPT__(, DOUBLE_NAMES(__VA_ARGS__)));                                          \
  }
#include "abi/nccl_functions.inc"
