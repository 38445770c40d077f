// The stream of a call: the stream argument, or the current stream of the tensor's framework.
#pragma once

#include "comm/graph.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

// The current stream of the framework that owns the tensor.
cudaStream_t current_stream(const DLPackExchangeAPI& api, const DLDevice& device);
cudaStream_t current_stream(const TensorView& view);

// This thread's current torch stream on a device if it is being captured, otherwise null.
cudaStream_t captured_stream(const Library& library, int device) noexcept;

// The handle of a stream argument: a pynccl Stream, an object with __cuda_stream__, a torch or CuPy
// stream, or an integer.
cudaStream_t stream_from_python(PyObject* stream, const Library& library);

// Inside capture(): the captured stream, unless current is being captured already.
inline cudaStream_t in_capture(const Library& library, cudaStream_t current) {
  return Graph::any_capture() ? Graph::redirect(library, current) : current;
}

// The stream of a call: the argument or, if it is nullptr or None, the current stream of the
// tensor's framework. For host memory the default is nullptr, the calling thread.
[[gnu::always_inline]] inline cudaStream_t resolve_stream(PyObject* stream, const TensorView& view,
                                                          const Library& library) {
  if (stream && stream != Py_None) return stream_from_python(stream, library);
  const cudaStream_t current = library.memory() == Memory::kHost ? nullptr : current_stream(view);
  return in_capture(library, current);
}

}  // namespace pynccl::python
