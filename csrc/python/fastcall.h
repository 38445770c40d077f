// Methods on the vectorcall path: a table of parameter names, arguments taken from the C array that
// Python hands over, no tuple, no dictionary. pybind11 makes the classes; these methods are added
// to them.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstring>
#include <string>

#include "python/errors.h"

namespace pynccl::python {

// The C++ object inside a pybind11 instance of a class bound with one type and no multiple
// inheritance. The method descriptor has checked the type of self.
template <class T>
T& unwrap(PyObject* self) {
  auto* instance = reinterpret_cast<py::detail::instance*>(self);
  void* value = instance->simple_layout ? instance->simple_value_holder[0]
                                        : instance->nonsimple.values_and_holders[0];
  if (!value) throw py::value_error("the object was never initialised");
  return *static_cast<T*>(value);
}

// The parameters of one method: the first Required must be given, the first Positional may be given
// by position, all by name. A parameter that was not given is nullptr.
template <std::size_t Count>
struct Signature {
  const char* function;
  std::array<const char*, Count> names;
  Py_ssize_t positional;
  Py_ssize_t required;

  std::array<PyObject*, Count> parse(PyObject* const* args, Py_ssize_t nargs,
                                     PyObject* kwnames) const {
    std::array<PyObject*, Count> values{};
    if (nargs > positional) [[unlikely]]
      throw py::type_error(std::string(function) + "() takes at most " +
                           std::to_string(positional) + " positional arguments, got " +
                           std::to_string(nargs));
    for (Py_ssize_t i = 0; i < nargs; ++i) values[static_cast<std::size_t>(i)] = args[i];
    const Py_ssize_t nkw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < nkw; ++i) {
      PyObject*& slot = find(values, PyTuple_GET_ITEM(kwnames, i));
      slot = args[nargs + i];
    }
    for (Py_ssize_t i = 0; i < required; ++i)
      if (!values[static_cast<std::size_t>(i)]) [[unlikely]]
        throw py::type_error(std::string(function) + "() misses the argument '" +
                             names[static_cast<std::size_t>(i)] + "'");
    return values;
  }

 private:
  PyObject*& find(std::array<PyObject*, Count>& values, PyObject* keyword) const {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(keyword, &length);
    if (!text) throw py::error_already_set();
    for (std::size_t i = 0; i < Count; ++i) {
      if (std::strcmp(names[i], text) != 0) continue;
      if (values[i])
        throw py::type_error(std::string(function) + "() got two values for '" + text + "'");
      return values[i];
    }
    throw py::type_error(std::string(function) + "() got an unexpected argument '" + text + "'");
  }
};

using FastMethod = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                 PyObject* kwnames);

// Adds methods to a class that pybind11 made. The table must live as long as the class.
inline void add_method(const py::handle& type, PyMethodDef& definition) {
  auto descriptor = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &definition));
  if (!descriptor) throw py::error_already_set();
  py::setattr(type, definition.ml_name, descriptor);
}

inline PyMethodDef fast_method(const char* name, FastMethod function, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, doc};
}

}  // namespace pynccl::python
