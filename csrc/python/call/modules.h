// Looks up attributes of modules that are already imported, without importing any.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python {

namespace py = pybind11;

// An interned str, created on first use under the GIL and never released.
class Name {
 public:
  constexpr explicit Name(const char* text) : text_(text) {}
  PyObject* get() {
    if (!name_ && !(name_ = PyUnicode_InternFromString(text_))) throw py::error_already_set();
    return name_;
  }

 private:
  const char* text_;
  PyObject* name_ = nullptr;
};

// An attribute of a module by its name.
class ModuleAttribute {
 public:
  constexpr ModuleAttribute(const char* module, const char* name) : module_(module), name_(name) {}

  // The module, borrowed; nullptr if it was not imported.
  PyObject* module() {
    PyObject* found = PyDict_GetItemWithError(PyImport_GetModuleDict(), module_.get());
    if (!found && PyErr_Occurred()) throw py::error_already_set();
    return found;
  }

  // The attribute, borrowed; nullptr if the module was not imported or does not define it yet.
  PyObject* get() {
    PyObject* found = module();
    if (!found || !PyModule_Check(found)) return nullptr;
    PyObject* attribute = PyDict_GetItemWithError(PyModule_GetDict(found), name_.get());
    if (!attribute && PyErr_Occurred()) throw py::error_already_set();
    return attribute;
  }

 private:
  Name module_, name_;
};

// A class of a module by its name. A class of a module that is not imported has no instances.
class ModuleClass : public ModuleAttribute {
 public:
  using ModuleAttribute::ModuleAttribute;

  PyTypeObject* get() {
    PyObject* type = ModuleAttribute::get();
    return type && PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type) : nullptr;
  }

  bool is_base_of(PyTypeObject* type) {
    PyTypeObject* base = get();
    return base && PyType_IsSubtype(type, base);
  }
};

// The attribute; null if it does not exist or reading it raises, as torch's
// __cuda_array_interface__ does for CPU tensors.
inline py::object attribute_or_null(PyObject* object, PyObject* name) {
  PyObject* found = nullptr;
#if PY_VERSION_HEX >= 0x030d0000
  const int result = PyObject_GetOptionalAttr(object, name, &found);
#else
  const int result = _PyObject_LookupAttr(object, name, &found);
#endif
  if (result < 0) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
    PyErr_Clear();
  }
  return py::reinterpret_steal<py::object>(found);
}

}  // namespace pynccl::python
