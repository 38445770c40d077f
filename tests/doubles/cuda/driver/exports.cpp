// The exported functions of libcuda.so.1, from the lists. Each records its call and calls its
// function in driver.h.
#include "driver/driver.h"
#include "driver/record.h"
#include "parameters.h"

using namespace cuda_double;

#define FUNCTION(symbol, result, name, ...)                                                \
  extern "C" [[gnu::visibility("default")]] result symbol(ABI_DECLARATIONS(__VA_ARGS__)) { \
    return recorded(#symbol, [&] {                                                         \
      return driver::name(DOUBLE_NAMES(__VA_ARGS__));                                      \
    } __VA_OPT__(, DOUBLE_NAMES(__VA_ARGS__)));                                            \
  }
#include "abi/driver_functions.inc"
#include "driver/more_functions.inc"
