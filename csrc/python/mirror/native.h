// Python types whose instances contain a C++ object, for objects that are created in every call.
// pybind11's table of instances would cost more than the object.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <new>

#include "python/call/errors.h"

namespace pynccl::python::mirror {

// T must be default-constructible, all zeros must be a valid state, and each(f) must call f for
// each of its py::object members. The memory of up to Spares instances is reused.
template <class T, std::size_t Spares = 0>
struct Native {
  PyObject_HEAD T value;

  static T& of(PyObject* self) { return reinterpret_cast<Native*>(self)->value; }

  // Creates an instance of the type or of a Python subclass.
  static PyObject* make(PyTypeObject* type) {
    PyObject* self = nullptr;
    if (spares.count != 0 && type == spares.type) {
      self = PyObject_Init(spares.instances[--spares.count], type);
      new (&of(self)) T();
      PyObject_GC_Track(self);
      return self;
    }
    self = type->tp_alloc(type, 0);
    if (!self) throw py::error_already_set();
    new (&of(self)) T();
    return self;
  }

  static PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
    return guarded([&] { return make(type); });
  }

  static void destroy(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    of(self).~T();
    if (type == spares.type && spares.count < Spares)
      spares.instances[spares.count++] = self;
    else
      type->tp_free(self);
    Py_DECREF(type);
  }

  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    int stop = 0;
    of(self).each([&](py::object& member) {
      if (!stop && member) stop = visit(member.ptr(), arg);
    });
    return stop;
  }

  static int clear(PyObject* self) {
    of(self).each([](py::object& member) { const py::object gone = std::move(member); });
    return 0;
  }

  // Only for the type itself, since instances of subclasses are larger.
  struct Spare {
    PyTypeObject* type = nullptr;
    std::size_t count = 0;
    std::array<PyObject*, Spares> instances;
  };
  inline static Spare spares;
};

template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

// Creates the type and adds it to the module.
inline PyTypeObject* add_type(py::module_& m, PyType_Spec& spec, const char* name) {
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) throw py::error_already_set();
  m.attr(name) = py::handle(type);
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace pynccl::python::mirror
