// What pynccl.mirror tells C++ of Python's classes when it is imported.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <utility>

namespace pynccl::python::mirror {

namespace py = pybind11;

struct Names {
  PyTypeObject* tensor = nullptr;  // torch.Tensor
  PyTypeObject* work = nullptr;    // pynccl.Work
  PyTypeObject* group = nullptr;   // pynccl.ProcessGroup
  // torch's operators and ours; the first one is SUM.
  std::array<std::pair<PyObject*, PyObject*>, 5> operators{};
};

inline Names names;

inline bool is_tensor(PyObject* object) {
  return object && (Py_TYPE(object) == names.tensor || PyObject_TypeCheck(object, names.tensor));
}

}  // namespace pynccl::python::mirror
