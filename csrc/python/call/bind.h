// The functions that add the classes and functions of the folders below to the module, which
// module.cpp calls, and what they share.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "python/call/gil.h"

namespace pynccl::python {

namespace py = pybind11;

// Adds a method to a class that is already bound.
template <class Class, class Function, class... Extra>
void add_method(const char* name, Function&& function, const Extra&... extra) {
  const py::type type = py::type::of<Class>();
  py::setattr(type, name,
              py::cpp_function(std::forward<Function>(function), py::name(name),
                               py::is_method(type), extra...));
}

// Makes a class a context manager that calls enter() and exit(failed).
template <class Class>
void add_context(Class& type) {
  using T = typename Class::type;
  type.def("__enter__", [](const py::object& self) {
    py::cast<T&>(self).enter();
    return self;
  });
  type.def("__exit__",
           [](T& self, const py::object& error, const py::args&) { self.exit(!error.is_none()); });
}

// Makes a class a context manager that calls close() without the GIL.
template <class Class>
void add_closing(Class& type) {
  type.def("__enter__", [](const py::object& self) { return self; });
  type.def("__exit__", [](typename Class::type& self, const py::args&) {
    const GilReleased released;
    self.close();
  });
}

// Warns that an object was deleted without close(). For destructors.
inline void warn_unclosed(const char* text) {
  const GilAcquired gil;
  const py::error_scope raised;  // an exception may be set
  if (PyErr_WarnEx(PyExc_ResourceWarning, text, 1) != 0) PyErr_WriteUnraisable(nullptr);
}

// Creates a shared object that warns if it is deleted while it is open.
template <class T, class... Arguments>
std::shared_ptr<T> make_warning(const char* text, Arguments&&... arguments) {
  const auto destroy = [text](T* object) {
    if (object->is_open()) warn_unclosed(text);
    delete object;
  };
  return {new T(std::forward<Arguments>(arguments)...), destroy};
}

// raw/
void bind_structs(py::module_& m);
void bind_library(py::module_& m);

// comm/
void bind_config(py::module_& m);
void bind_red_op(py::module_& m);
void bind_stream(py::module_& m);
void bind_buffer(py::module_& m);
void bind_communicator(py::module_& m);
void bind_extension(py::module_& m);
void bind_window(py::module_& m);
void bind_group(py::module_& m);
void bind_checksum(py::module_& m);

// device/
void bind_device_comm(py::module_& m);

// watch/
void bind_deadlines(py::module_& m);
void bind_inquiry(py::module_& m);
void bind_flight_record(py::module_& m);
void bind_trace(py::module_& m);

// collectives/
void bind_collectives(py::module_& m);
void bind_one_sided(py::module_& m);

namespace mirror {
void bind_comm_stream(py::module_& m);
void bind_work(py::module_& m);
void bind_process_group(py::module_& m);
void bind_fast_function(py::module_& m);
void bind_p2p_op(py::module_& m);
}  // namespace mirror

}  // namespace pynccl::python
