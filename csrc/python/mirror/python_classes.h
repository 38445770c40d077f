// The Python classes and operators that the fast functions use, set by set_work_class() and
// set_group_classes() when the mirror is imported.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

namespace pynccl::python::mirror {

namespace py = pybind11;

struct PythonClasses {
  PyTypeObject* tensor = nullptr;  // torch.Tensor
  PyTypeObject* work = nullptr;    // pynccl.Work
  PyTypeObject* group = nullptr;   // pynccl.ProcessGroup
  // Operator arguments and the RedOps that they stand for; torch's SUM first.
  std::vector<std::pair<PyObject*, PyObject*>> operators;
};

inline PythonClasses classes;

inline bool is_tensor(PyObject* object) {
  return object &&
         (Py_TYPE(object) == classes.tensor || PyObject_TypeCheck(object, classes.tensor));
}

}  // namespace pynccl::python::mirror
