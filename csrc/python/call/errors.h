// From C++ exceptions to Python's: the tree in pynccl/errors.py for what NCCL and the driver
// answer, ValueError and TypeError for mistakes in arguments.
#pragma once

#include <pybind11/pybind11.h>

#include "core/error.h"

namespace pynccl::python {

namespace py = pybind11;

// Throws the TypeError that names the argument, what it must be, and what was passed.
[[noreturn, gnu::cold]] void throw_type_error(const char* argument, const char* expected,
                                              PyObject* value);

// The Python exception, not raised, for a state that ncclCommGetAsyncError gave; None for
// ncclSuccess.
py::object error_object(ncclResult_t code, const char* function, int rank, const std::string& text);

void register_exceptions(py::module_& m);

// Runs body, which gives a new reference, and turns what it throws into a raised Python exception:
// the edge of every function that Python calls without pybind11's dispatcher.
template <class Body>
[[gnu::always_inline]] inline PyObject* guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    py::detail::try_translate_exceptions();
    return nullptr;
  }
}

}  // namespace pynccl::python
