#include "hostnccl/streams/device_error.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace hostnccl {
namespace {

using namespace abi;

struct ErrorText {
  CUresult result;
  const char* name;
  const char* text;
};

const ErrorText* find(CUresult result) {
#define ERROR(name, text) \
  {                       \
    name, #name, text     \
  }
  static constexpr ErrorText kTexts[] = {
      ERROR(CUDA_SUCCESS, "success"),
      ERROR(CUDA_ERROR_INVALID_VALUE, "invalid value"),
      ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
      ERROR(CUDA_ERROR_NOT_INITIALIZED, "not initialized"),
      ERROR(CUDA_ERROR_NO_DEVICE, "no device"),
      ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device: the only device is 0"),
      ERROR(CUDA_ERROR_INVALID_HANDLE,
            "the handle is not an open stream, event or graph of this process"),
      ERROR(CUDA_ERROR_ILLEGAL_STATE,
            "a communicator or window of the graph was destroyed or cannot be used: call "
            "ncclGetLastError for the reason"),
      ERROR(CUDA_ERROR_NOT_READY, "not ready: work is still queued"),
      ERROR(CUDA_ERROR_NOT_PERMITTED, "not permitted in a function called by a stream"),
      ERROR(CUDA_ERROR_NOT_SUPPORTED, "not supported on CPUs"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            "not permitted while a stream is capturing, or on a default stream, which is the "
            "calling thread"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            "an earlier error has invalidated the stream's capture"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "the call would merge two captures"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture did not begin on this stream"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            "captured work on another stream was not joined: record an event after it and make "
            "the origin stream wait for that event"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            "captured work would depend on an event recorded outside the capture"),
      ERROR(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture was begun by another thread"),
      ERROR(CUDA_ERROR_UNKNOWN,
            "work queued on the stream failed: call ncclCommGetAsyncError of its communicator for "
            "the "
            "reason"),
  };
#undef ERROR
  const auto* found = std::find_if(std::begin(kTexts), std::end(kTexts),
                                   [result](const ErrorText& e) { return e.result == result; });
  return found == std::end(kTexts) ? nullptr : found;
}

struct Reason {
  CUresult result = CUDA_SUCCESS;
  std::string text;  // empty: none
  SharedFailure failure;
};
thread_local Reason last_reason;

}  // namespace

DeviceError::DeviceError(CUresult result)
    : Error(ncclUnhandledCudaError,
            format("%s: %s", device_error_name(result), find(result)->text)),
      result_(result) {}

DeviceError::DeviceError(CUresult result, const std::string& reason)
    : Error(ncclUnhandledCudaError, reason), result_(result), has_reason_(true) {}

DeviceError::DeviceError(SharedFailure failure, const char* prefix)
    : DeviceError(CUDA_ERROR_UNKNOWN, prefix + failure->error.text()) {
  failure_ = std::move(failure);
}

void DeviceError::remember() const {
  remember_error(text());
  last_reason = {result_, has_reason_ ? text() : std::string(), failure_};
}

void remember_unknown(const Error& error) noexcept {
  remember_error(error.text());
  try {
    last_reason = {CUDA_ERROR_UNKNOWN, error.text(), nullptr};
  } catch (const std::bad_alloc&) {
    last_reason = {};
  }
}

SharedFailure last_work_failure() { return last_reason.failure; }

const char* device_error_name(CUresult result) {
  const ErrorText* found = find(result);
  return found != nullptr ? found->name : nullptr;
}

const char* device_error_text(CUresult result) {
  if (result == last_reason.result && !last_reason.text.empty()) return last_reason.text.c_str();
  const ErrorText* found = find(result);
  return found != nullptr ? found->text : nullptr;
}

}  // namespace hostnccl
