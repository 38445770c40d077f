// Translates C++ exceptions to Python: the classes of pynccl/errors.py for failures of NCCL, the
// driver and the loader, ValueError and TypeError for invalid arguments.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "nccl/failure.h"

namespace pynccl::python {

namespace py = pybind11;

// Throws a TypeError that names the argument, the expected type and the value.
[[noreturn, gnu::cold]] void throw_type_error(const char* argument, const char* expected,
                                              PyObject* value);

// The same in place of the TypeError, OverflowError or BufferError that the value's conversion has
// raised. Other exceptions, such as a KeyboardInterrupt, propagate.
[[noreturn, gnu::cold]] void throw_conversion_error(const char* argument, const char* expected,
                                                    PyObject* value);

// Throws a ValueError that names the argument. The text consists of the parts.
template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void throw_value_error(std::string_view argument,
                                                              Parts... parts) {
  std::string text = std::string(argument) + ": ";
  const auto append = [&text](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>)
      text += std::to_string(part);
    else
      text += part;
  };
  (append(parts), ...);
  throw py::value_error(text);
}

// Throws an OSError for an error about the file that its text names.
[[noreturn, gnu::cold]] void throw_os_error(const std::system_error& error);

// Sets an exception object as Python's current error.
void raise(const py::object& error);

// Returns the Python exception for a failure without raising it.
py::object error_object(const NcclFailure& failure);

// Whether a raised exception is an NcclError or a DriverError.
bool is_library_error(const py::error_already_set& error);

void bind_errors(py::module_& m);

// Runs body, which returns a new reference, and turns a C++ exception into a raised Python one.
// Required in every function that Python calls without pybind11's dispatcher.
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
