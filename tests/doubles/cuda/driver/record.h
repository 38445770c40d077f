// The record of driver and NCCL calls, off until a test enables it. A call is added when it
// starts, and its result is set when it returns.
#pragma once

#include <array>
#include <type_traits>

#include "types.h"

namespace cuda_double {

struct RecordedCall {  // read from Python: tests/doubles/library.py has the same fields
  static constexpr int kMostArguments = 16;

  const char* function = nullptr;
  uint64_t stream = 0;
  int32_t result = -1;  // -1 while the call runs
  int32_t arguments = 0;
  std::array<uint64_t, kMostArguments> argument{};
};

bool recording();
int64_t begin_call(const RecordedCall& call);  // returns its number, for end_call()
void end_call(int64_t number, int result);

template <class T>
void add_argument(RecordedCall& call, const T& value) {
  uint64_t word = 0;
  if constexpr (std::is_pointer_v<T>) {
    word = reinterpret_cast<uint64_t>(value);
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    word = static_cast<uint64_t>(value);
  }
  if constexpr (std::is_same_v<T, CUstream>) call.stream = word;
  if (call.arguments < RecordedCall::kMostArguments) call.argument[call.arguments++] = word;
}

// Calls body and records it as function with these arguments.
template <class Body, class... Arguments>
auto recorded(const char* function, Body&& body, const Arguments&... arguments) {
  if (!recording()) return body();
  RecordedCall call;
  call.function = function;
  (add_argument(call, arguments), ...);
  const int64_t number = begin_call(call);
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    end_call(number, 0);
  } else {
    const auto result = body();
    if constexpr (std::is_convertible_v<decltype(body()), int> ||
                  std::is_enum_v<decltype(body())>) {
      end_call(number, static_cast<int>(result));
    } else {
      end_call(number, 0);
    }
    return result;
  }
}

}  // namespace cuda_double
