// The record of driver and NCCL calls, off until a test enables it. A call is listed from its
// start. Its result is set when it returns.
#pragma once

#include <array>
#include <type_traits>

#include "types.h"

namespace cuda_double {

struct RecordedCall {  // read from Python: tests/doubles/library.py has the same fields
  static constexpr int kMostArguments = 16;

  const char* function = nullptr;
  int64_t thread = 0;
  int32_t device = -1;  // of the thread's current context; -1 without one
  int32_t result = -1;  // -1 while the call runs
  uint64_t stream = 0;
  uint64_t event = 0;
  uint64_t comm = 0;
  double seconds = 0;  // its start, on a monotonic clock
  int32_t has_stream = 0;
  int32_t arguments = 0;
  std::array<uint64_t, kMostArguments> argument{};
};

bool recording();
int64_t begin_call(RecordedCall call);  // -1 if recording is off
void end_call(int64_t place, int result);

template <class T>
void add_argument(RecordedCall& call, const T& value) {
  uint64_t word = 0;
  if constexpr (std::is_pointer_v<T>) {
    word = reinterpret_cast<uint64_t>(value);
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    word = static_cast<uint64_t>(value);
  }
  if constexpr (std::is_same_v<T, CUstream>) {
    call.stream = word;
    call.has_stream = 1;
  }
  if constexpr (std::is_same_v<T, CUevent>) call.event = word;
  if constexpr (std::is_same_v<T, ncclComm_t>) call.comm = word;
  if (call.arguments < RecordedCall::kMostArguments) call.argument[call.arguments++] = word;
}

// Calls body and records it as function with these arguments.
template <class Body, class... Arguments>
auto recorded(const char* function, Body&& body, const Arguments&... arguments) {
  if (!recording()) return body();
  RecordedCall call;
  call.function = function;
  (add_argument(call, arguments), ...);
  const int64_t place = begin_call(call);
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    end_call(place, 0);
  } else {
    const auto result = body();
    if constexpr (std::is_convertible_v<decltype(body()), int> ||
                  std::is_enum_v<decltype(body())>) {
      end_call(place, static_cast<int>(result));
    } else {
      end_call(place, 0);
    }
    return result;
  }
}

}  // namespace cuda_double
