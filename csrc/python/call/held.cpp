#include "python/call/held.h"

#include "core/graph.h"
#include "python/call/gil.h"

namespace pynccl::python {

std::shared_ptr<void> hold(py::object object) {
  const auto release = [](void* reference) {
    if (Py_IsInitialized() && PyGILState_Check()) [[likely]]
      return Py_DECREF(static_cast<PyObject*>(reference));
    const GilAcquired gil;
    Py_DECREF(static_cast<PyObject*>(reference));
  };
  return {object.release().ptr(), release};
}

std::shared_ptr<void> hold(std::vector<py::object> objects) {
  const auto release = [](std::vector<py::object>* held) {
    const GilAcquired gil;
    delete held;
  };
  return std::shared_ptr<std::vector<py::object>>(new std::vector(std::move(objects)), release);
}

void hold_in_capture(const Library& library, CUstream stream,
                     std::initializer_list<PyObject*> objects) {
  std::vector<py::object> held;
  for (PyObject* object : objects)
    if (object) held.push_back(py::reinterpret_borrow<py::object>(object));
  Graph::hold(library, stream, hold(std::move(held)));
}

}  // namespace pynccl::python
