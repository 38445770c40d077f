// Buffers described by a Python protocol: an array interface or __dlpack__. The description is
// checked as far as possible.
#pragma once

#include "python/convert/tensor.h"

namespace pynccl::python {

// Reads the first of __cuda_array_interface__, __array_interface__ and __dlpack__ that the object
// supports. Returns false if it supports none.
bool view_interface(TensorView& view, Owners& owners);

}  // namespace pynccl::python
