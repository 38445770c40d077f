// Replaces exceptions of NCCL and the driver by those of the mirror.
#pragma once

#include <utility>

#include "python/call/errors.h"

namespace pynccl::python::mirror {

// Replaces the current Python exception if it comes from NCCL or the driver.
[[gnu::cold]] void explain(const py::object& comm_stream, PyObject* kind);

// Runs body, which returns a new reference. If NCCL or the driver fails, raises the exception
// returned by explain(kind, error) of the Python CommStream.
template <class Body>
PyObject* explained(const py::object& comm_stream, PyObject* kind, Body&& body) {
  PyObject* result = guarded(std::forward<Body>(body));
  if (!result) [[unlikely]]
    explain(comm_stream, kind);
  return result;
}

}  // namespace pynccl::python::mirror
