// Buffers that an object describes by a protocol of Python: an array interface or __dlpack__. What
// it says is checked, as far as it can be.
#pragma once

#include "python/convert/owners.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

// Reads __cuda_array_interface__, __array_interface__ or __dlpack__, the first one that the object
// has. False if it has none of them.
bool view_interface(TensorView& view, Owners& owners);

}  // namespace pynccl::python
