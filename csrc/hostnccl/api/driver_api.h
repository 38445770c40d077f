// Declarations of hostnccl's driver API, for the files that define it (driver_*.cpp), and their
// guard and handle checks. The functions are the CUDA driver calls that pynccl uses, with the same
// semantics for CPU memory, and host instead of cu in the name.
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

// Runs body and returns its error as a CUresult.
template <typename Body>
abi::CUresult driver_guarded(Body&& body) noexcept {
  try {
    body();
    return abi::CUDA_SUCCESS;
  } catch (const DeviceError& error) {
    error.remember();
    return error.result();
  } catch (const std::bad_alloc&) {
    remember_error(current_error().text());
    return abi::CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    remember_unknown(current_error());
    return abi::CUDA_ERROR_UNKNOWN;
  }
}

// The object of a handle. Throws CUDA_ERROR_INVALID_HANDLE if the handle is not open.
template <typename T>
Ref<T> object_of(const void* handle) {
  Ref<T> object = handles<T>().find(handle);
  require(object && object->is_of_this_process(), abi::CUDA_ERROR_INVALID_HANDLE);
  return object;
}

// Closes a handle and returns its object, which may belong to the parent process.
template <typename T>
Ref<T> close_handle(const void* handle) {
  Ref<T> object = handles<T>().find(handle);
  require(object && handles<T>().close(object), abi::CUDA_ERROR_INVALID_HANDLE);
  return object;
}

// Opens a handle of a new object.
template <typename Handle, typename T>
Handle open_handle(std::unique_ptr<T> object) {
  return reinterpret_cast<Handle>(handles<T>().open(std::move(object)).slot());
}

// Null for the default streams, which are the calling thread.
inline Ref<Stream> stream_of(abi::CUstream handle) {
  if (is_calling_thread(handle)) return {};
  return object_of<Stream>(handle);
}

template <typename T>
T* non_null(T* pointer) {
  require(pointer != nullptr, abi::CUDA_ERROR_INVALID_VALUE);
  return pointer;
}

// Calls a host function. Throws the failure that it reported by hostFailFunction().
void run_function(abi::CUhostFn function, void* data);

inline void run_or_enqueue(const Ref<Stream>& stream, Stream::Callback callback) {
  if (stream && stream->capturing()) {
    Capture::add_node({stream},
                      [callback = std::move(callback)](const SharedFailure&) { callback(); });
  } else if (stream) {
    Stream::enqueue(stream, std::move(callback));
  } else {
    try {
      callback();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      throw DeviceError(std::make_shared<StreamFailure>(current_error()), "");
    }
  }
}

}  // namespace hostnccl
