// CuPy arrays, read through their C-level attributes.
#pragma once

#include "python/convert/tensor.h"

namespace pynccl::python::cupy_array {

// Whether the type is cupy.ndarray or a subclass.
bool is_type(PyTypeObject* type);
// Whether view() can read instances of the type.
bool reads(PyTypeObject* type);

// Reads an instance of a type that reads() accepts.
void view(TensorView& view);

// CuPy's current stream of a device.
cudaStream_t current_stream(int device);

}  // namespace pynccl::python::cupy_array
