// Classes of modules that are imported already: what was not imported has no instances.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python {

namespace py = pybind11;

// The module, or None where it was not imported. Imports nothing.
inline py::object imported(const char* module) {
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), module);  // borrowed
  return py::reinterpret_borrow<py::object>(found ? found : Py_None);
}

// The class of this name of a module, borrowed; nullptr where the module was not imported, or has
// no such class (while it is being imported).
inline PyTypeObject* class_of_module(const char* module, const char* name) {
  const py::object found = imported(module);
  if (found.is_none()) return nullptr;
  const py::object type = py::getattr(found, name, py::none());
  return PyType_Check(type.ptr()) ? reinterpret_cast<PyTypeObject*>(type.ptr()) : nullptr;
}

}  // namespace pynccl::python
