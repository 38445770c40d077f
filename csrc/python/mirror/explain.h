// The exceptions of the mirror in place of those of NCCL and the driver.
#pragma once

#include <utility>

#include "python/call/errors.h"

namespace pynccl::python::mirror {

// Replaces the exception that is raised now, if it is of NCCL or the driver.
[[gnu::cold]] void explain(const py::object& comm_stream, PyObject* kind);

// Runs body, which returns a new reference. Where NCCL or the driver fails, it raises what
// explain(kind, error) of the CommStream (Python's) returns.
template <class Body>
PyObject* explained(const py::object& comm_stream, PyObject* kind, Body&& body) {
  PyObject* result = guarded(std::forward<Body>(body));
  if (!result) [[unlikely]]
    explain(comm_stream, kind);
  return result;
}

}  // namespace pynccl::python::mirror
