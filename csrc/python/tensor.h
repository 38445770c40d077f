// What NCCL needs to know of a buffer, read from anything that holds one: by DLPack's C exchange
// API (torch: no Python call), by an array interface, by __dlpack__, or from an integer address
// with a count and a dtype.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include "core/graph.h"
#include "python/dtype.h"

struct DLPackExchangeAPI;

namespace pynccl::python {

struct TensorView {
  char* data = nullptr;
  std::size_t count = 0;  // elements of dtype->nccl
  const DType* dtype = nullptr;
  int device_type = 0;  // DLDeviceType; 0 for an address, which says nothing of its device
  int device_id = 0;
  bool readonly = false;
  const DLPackExchangeAPI* api = nullptr;  // knows the current stream
  PyObject* owner = nullptr;               // borrowed from the call
  const char* argument = "";               // its name in messages

  std::size_t nbytes() const { return count * dtype->size() / dtype->width; }
};

// Reads a buffer; what count and dtype are for is an address, they must be null otherwise. Throws
// TypeError and ValueError that name the argument: no buffer, not contiguous, a dtype that NCCL
// does not have.
void view_tensor(TensorView& view, const char* argument, PyObject* object, PyObject* count,
                 PyObject* dtype);
inline TensorView view_tensor(const char* argument, PyObject* object, PyObject* count,
                              PyObject* dtype) {
  TensorView view;
  view_tensor(view, argument, object, count, dtype);
  return view;
}

// Throws ValueError where the buffer is not in the memory of this library's communicators on this
// device, or its dtype is newer than the library.
void check_placement(const TensorView& view, const Library& library, int device);

// The current stream of the framework that owns the tensor.
cudaStream_t current_stream(const TensorView& view);

// An explicit stream: a pynccl Stream, an object with __cuda_stream__, a torch or CuPy stream, an
// integer.
cudaStream_t stream_from_python(PyObject* stream, const Library& library);

// The stream of a call: what the user passed (nullptr and None: nothing), or the current stream of
// the framework that owns the tensor. On a library over host memory that is the calling thread. In
// a thread that captures by capture(), the captured stream stands for one that is not captured.
inline cudaStream_t resolve_stream(PyObject* stream, const TensorView& view,
                                   const Library& library) {
  if (stream && stream != Py_None) return stream_from_python(stream, library);
  const cudaStream_t current = library.memory() == Memory::kHost ? nullptr : current_stream(view);
  return Graph::any_capture() ? Graph::redirect(library, current) : current;
}

}  // namespace pynccl::python
