// The C++ part of pynccl.Work, the handle of an asynchronous operation.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/async_operation.h"
#include "comm/communicator.h"
#include "python/call/errors.h"
#include "python/convert/tensor.h"
#include "python/mirror/native.h"

namespace pynccl::python::mirror {

struct Work {
  Work() = default;  // a work that was never started
  // object is the Python CommStream of the operation, which owns the communicator. view is one of
  // the tensors; its framework and device determine the current stream.
  Work(py::object object, Communicator& its_communicator, py::object operation_name,
       const TensorView& view_of_tensor)
      : comm_stream(std::move(object)),
        communicator(&its_communicator),
        name(std::move(operation_name)),
        view(view_of_tensor) {
    view.owner = nullptr;
  }

  CUstream current_stream() const;

  // For Native<Work>.
  template <class F>
  void each(F&& f) {
    f(comm_stream), f(name), f(result), f(error);
  }

  py::object comm_stream;
  Communicator* communicator = nullptr;
  py::object name;
  TensorView view;
  py::object result;  // the output tensor, or a list of output tensors
  int source = -1;    // the rank that the operation receives from
  std::shared_ptr<AsyncOperation> operation;
  py::object error;  // the error of the operation
  bool waited = false;
};

// Creates an instance of the Python class.
PyObject* make_work(Work&& work);

// Replaces the current Python exception if it comes from NCCL or the driver.
[[gnu::cold]] void explain(const py::object& comm_stream, PyObject* kind);

// Runs body, which returns a new reference. If NCCL or the driver fails, raises the exception
// returned by explain(kind, error) of the Python CommStream.
template <class Body>
PyObject* explained(const py::object& comm_stream, PyObject* kind, Body&& body) {
  PyObject* result = guarded(std::forward<Body>(body));
  if (!result) [[unlikely]]
    explain(comm_stream, kind);
  return result;
}

}  // namespace pynccl::python::mirror
