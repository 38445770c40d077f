// The stream of a call: the one that was passed, or the current one of the tensor's framework.
#pragma once

#include "core/graph.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

// The current stream of the framework that owns the tensor.
cudaStream_t current_stream(const DLPackExchangeAPI& api, const DLDevice& device);
cudaStream_t current_stream(const TensorView& view);

// An explicit stream: a pynccl Stream, an object with __cuda_stream__, a torch or CuPy stream, an
// integer.
cudaStream_t stream_from_python(PyObject* stream, const Library& library);

// In a thread that captures by capture(), the captured stream instead of one that is not captured.
inline cudaStream_t in_capture(const Library& library, cudaStream_t current) {
  return Graph::any_capture() ? Graph::redirect(library, current) : current;
}

// The stream of a call: what the user passed (nullptr and None: nothing), or the current stream of
// the framework that owns the tensor. On a library over host memory that is the calling thread.
[[gnu::always_inline]] inline cudaStream_t resolve_stream(PyObject* stream, const TensorView& view,
                                                          const Library& library) {
  if (stream && stream != Py_None) return stream_from_python(stream, library);
  const cudaStream_t current = library.memory() == Memory::kHost ? nullptr : current_stream(view);
  return in_capture(library, current);
}

}  // namespace pynccl::python
