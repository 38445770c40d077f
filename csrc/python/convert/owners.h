// Owners: references to owners of a call's buffers that the caller does not hold, such as the
// capsule of __dlpack__(). They are kept until the operation is done.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python {

namespace py = pybind11;

class Owners {
 public:
  Owners() = default;
  ~Owners() {
    if (list_) [[unlikely]]
      Py_DECREF(list_);
  }
  Owners(const Owners&) = delete;
  Owners& operator=(const Owners&) = delete;

  void add(const py::object& owner) {
    if (!list_ && !(list_ = PyList_New(0))) throw py::error_already_set();
    if (PyList_Append(list_, owner.ptr()) != 0) throw py::error_already_set();
  }
  // All owners as one object; nullptr if there are none, as for most arrays.
  PyObject* get() const { return list_; }
  py::object object() const { return py::reinterpret_borrow<py::object>(list_ ? list_ : Py_None); }

 private:
  PyObject* list_ = nullptr;
};

}  // namespace pynccl::python
