// Converts a shape argument: an integer or a sequence of integers.
#pragma once

#include <vector>

#include "python/convert/integer.h"

namespace pynccl::python {

inline std::vector<std::int64_t> extents_from_python(const py::object& shape) {
  if (PyIndex_Check(shape.ptr())) return {integer_from_python<std::int64_t>("shape", shape.ptr())};
  if (!py::isinstance<py::sequence>(shape) || py::isinstance<py::str>(shape))
    throw_type_error("shape", "an integer or a sequence of integers", shape.ptr());
  std::vector<std::int64_t> extents;
  for (const py::handle extent : shape)
    extents.push_back(integer_from_python<std::int64_t>("shape", extent.ptr()));
  return extents;
}

}  // namespace pynccl::python
