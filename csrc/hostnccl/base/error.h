// Error: a result code and a text. The engine throws it, and guarded() converts it to the
// ncclResult_t of a C function. ncclGetLastError returns the text of a thread's last error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "abi/nccl_types.h"

namespace hostnccl {

namespace abi = pynccl::abi;

class Error : public std::exception {
 public:
  Error(abi::ncclResult_t code, std::string text) : code_(code), text_(std::move(text)) {}
  abi::ncclResult_t code() const { return code_; }
  const std::string& text() const { return text_; }
  // The failed object as the client identifies it: the handle of a communicator, or the argument of
  // hostFailFunction(). Null if unknown.
  const void* origin() const { return origin_; }
  Error& set_origin(const void* origin) {
    origin_ = origin;
    return *this;
  }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  abi::ncclResult_t code_;
  std::string text_;
  const void* origin_ = nullptr;
};

// An error in shared memory or in a message.
template <size_t kTextBytes>
struct ErrorRecord {
  uint32_t code;
  char text[kTextBytes];  // ends with a zero

  void set(const Error& error) {  // truncates the text
    code = error.code();
    const size_t length = std::min(error.text().size(), sizeof text - 1);
    std::memcpy(text, error.text().data(), length);
    text[length] = '\0';
  }
  Error error() const { return Error(static_cast<abi::ncclResult_t>(code), text); }
};

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

[[noreturn, gnu::format(printf, 2, 3)]] void fail(abi::ncclResult_t code, const char* pattern, ...);

// Throws ncclSystemError with the text of errno.
[[noreturn, gnu::format(printf, 1, 2)]] void fail_errno(const char* pattern, ...);

// Converts the current exception to an Error. For catch blocks.
Error current_error() noexcept;

void remember_error(const std::string& text) noexcept;  // as this thread's last error
// This thread's last error. If it has none, and if requested, the last one of any thread.
const char* last_error(bool of_any_thread) noexcept;

// Runs body and returns its result, if it returns an ncclResult_t, or ncclSuccess. Converts an
// exception to its code and remembers the text.
template <typename Body>
abi::ncclResult_t guarded(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return abi::ncclSuccess;
    } else {
      return body();
    }
  } catch (...) {
    const Error error = current_error();
    remember_error(error.text());
    return error.code();
  }
}

const char* result_text(abi::ncclResult_t result);

}  // namespace hostnccl
