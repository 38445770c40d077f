// What the calls of the driver API have in common: their declarations, from the list, and how they
// check handles and results.
#pragma once

#include <utility>

#include "abi/driver_types.h"
#include "hostnccl/streams/capture.h"
#include "hostnccl/streams/device_error.h"
#include "hostnccl/streams/event.h"
#include "hostnccl/streams/stream.h"

#include "abi/c_params.inc"
#define FUNCTION(symbol, result, name, ...)                                 \
  namespace pynccl::abi {                                                   \
  extern "C" [[gnu::visibility("default")]] result host##name(__VA_ARGS__); \
  }
#include "abi/driver_functions.inc"
#include "abi/undef.inc"

namespace hostnccl {

template <typename Body>
abi::CUresult checked(Body&& body) noexcept {
  try {
    body();
    return abi::CUDA_SUCCESS;
  } catch (const DeviceError& error) {
    remember_error(error.text());
    return error.result();
  } catch (const std::bad_alloc&) {
    return abi::CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    remember_error(current_error().text());
    return abi::CUDA_ERROR_UNKNOWN;
  }
}

// What a handle stands for, or CUDA_ERROR_INVALID_HANDLE.
template <typename T>
Ref<T> found(HandleTable<T>& table, const void* handle) {
  Ref<T> object = table.find(handle);
  require(object && object->is_of_this_process(), abi::CUDA_ERROR_INVALID_HANDLE);
  return object;
}

// None for the streams that are the calling thread.
inline Ref<Stream> find(abi::CUstream handle) {
  if (is_calling_thread(handle)) return {};
  return found(streams(), handle);
}

inline Ref<Event> find(abi::CUevent handle) { return found(events(), handle); }

template <typename T>
T* out(T* pointer) {
  require(pointer != nullptr, abi::CUDA_ERROR_INVALID_VALUE);
  return pointer;
}

inline void run_or_enqueue(const Ref<Stream>& stream, Stream::Work work) {
  if (stream && stream->capturing()) {
    Capture::record({stream}, std::move(work));
  } else if (stream) {
    Stream::enqueue(stream, std::move(work));
  } else {
    work();
  }
}

}  // namespace hostnccl
