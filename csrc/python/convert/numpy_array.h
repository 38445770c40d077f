// NumPy arrays, read from their C structure, whose layout is part of NumPy's ABI. NumPy is not a
// dependency, neither to build nor to run: the class is looked up if NumPy is imported, and the
// layout is compared once with the Python attributes of some arrays.
#pragma once

#include "python/convert/tensor.h"

namespace pynccl::python::numpy_array {

// Whether view() can read instances of the type.
bool reads(PyTypeObject* type);

// Throws TypeError for array-like objects that cannot be shared: a scalar, whose memory is a
// temporary copy, and a masked array, whose mask would be ignored.
void refuse(const char* argument, PyObject* object);

// Reads an instance of a type that reads() accepts.
void view(TensorView& view);

// The type of a NumPy dtype object, cached per object. Throws ValueError.
const DType& dtype_of(const char* argument, PyObject* descr);

}  // namespace pynccl::python::numpy_array
