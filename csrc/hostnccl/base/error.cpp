#include "hostnccl/base/error.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <new>
#include <system_error>

#include "common/per_process.h"

namespace hostnccl {
namespace {

std::string vformat(const char* pattern, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, arguments);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

// The beginning of a thread's exception state, as laid out by the C++ ABI.
struct ExceptionState {
  void* caught;
  unsigned int uncaught;
};

// Balances the counts of uncaught exceptions after this library has caught an exception of the
// program. The program has another C++ runtime, which incremented its own count when the exception
// was thrown, whereas the catch decremented the count of the runtime linked into this library.
void balance_uncaught() noexcept {
  if (std::uncaught_exceptions() >= 0) return;
  ++reinterpret_cast<ExceptionState*>(::__cxxabiv1::__cxa_get_globals())->uncaught;
  void* const runtime = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (runtime == nullptr) return;
  using Get = ExceptionState* (*)();
  const Get get = reinterpret_cast<Get>(dlsym(runtime, "__cxa_get_globals"));
  if (get != nullptr && get()->uncaught > 0) --get()->uncaught;
  dlclose(runtime);
}

std::string& last_text() {
  thread_local std::string text;
  return text;
}

// The last error of any thread.
struct LastOfAnyThread {
  std::mutex mutex;
  std::string text;
};

}  // namespace

std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  return text;
}

void fail(abi::ncclResult_t code, const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  throw Error(code, std::move(text));
}

void fail_errno(const char* pattern, ...) {
  const int number = errno;
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  throw Error(abi::ncclSystemError, text + ": " + std::system_category().message(number));
}

Error current_error() noexcept {
  balance_uncaught();
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(abi::ncclSystemError, "out of memory");
  } catch (const std::system_error& error) {
    return Error(abi::ncclSystemError, error.what());
  } catch (const std::exception& error) {
    return Error(abi::ncclInternalError, error.what());
  } catch (...) {
    return Error(abi::ncclInternalError, "an unknown exception");
  }
}

void remember_error(const std::string& text) noexcept {
  try {
    last_text() = text;
    auto& all = common::per_process<LastOfAnyThread>();
    const std::lock_guard lock(all.mutex);
    all.text = text;
  } catch (...) {
    last_text().clear();
  }
}

const char* last_error(bool of_any_thread) noexcept {
  try {
    if (last_text().empty() && of_any_thread) {
      auto& all = common::per_process<LastOfAnyThread>();
      const std::lock_guard lock(all.mutex);
      last_text() = all.text;
    }
  } catch (...) {  // out of memory: the text stays empty
  }
  return last_text().c_str();
}

const char* result_text(abi::ncclResult_t result) {
  static const char* const kTexts[] = {
      "success",
      "a call to the device failed",
      "a call to the operating system failed",
      "internal error of hostnccl",
      "invalid argument",
      "invalid usage",
      "a remote rank failed",
      "the operation is still in progress",
      "timed out",
  };
  static_assert(std::size(kTexts) == abi::ncclNumResults);
  return result < abi::ncclNumResults ? kTexts[result] : "unknown result code";
}

}  // namespace hostnccl
