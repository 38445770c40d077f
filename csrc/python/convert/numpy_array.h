// NumPy's arrays, read from their C structure, whose layout is part of NumPy's binary interface.
// NumPy is needed neither to build nor to run: the class is looked for where NumPy was imported,
// and its layout is compared once with what Python says of some arrays.
#pragma once

#include "python/convert/tensor.h"

namespace pynccl::python::numpy_array {

// Whether instances of the type can be read.
bool reads(PyTypeObject* type);

// Throws TypeError for what looks like an array and has no values to share: a scalar, whose memory
// is a copy that is freed at once, and a masked array, whose mask would be ignored.
void refuse(const char* argument, PyObject* object);

// Reads an instance of a type that reads() accepts.
void view(TensorView& view);

// The dtype of a dtype object of NumPy; looked up once for each object. Throws ValueError.
const DType& dtype_of(const char* argument, PyObject* descr);

}  // namespace pynccl::python::numpy_array
