// The C++ part of pynccl.Work, the handle of an asynchronous operation.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "comm/async_operation.h"
#include "comm/communicator.h"
#include "python/convert/tensor.h"
#include "python/mirror/native.h"

namespace pynccl::python::mirror {

struct Work {
  Work() = default;  // one that was never started
  // Of an operation on this CommStream (Python's object, which owns the communicator); place is one
  // of its tensors: its framework and device determine the current stream.
  Work(py::object object, Communicator& its_communicator, py::object operation_name,
       const TensorView& place_of_tensor)
      : comm_stream(std::move(object)),
        communicator(&its_communicator),
        name(std::move(operation_name)),
        place(place_of_tensor) {
    place.owner = nullptr;
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
  TensorView place;
  py::object result;  // the tensors that it writes: a list, or the only one
  int source = -1;    // the rank that it receives from
  std::shared_ptr<AsyncOperation> operation;
  py::object error;  // what it failed with
  bool waited = false;
};

// An instance of the Python class.
PyObject* make_work(Work&& work);

}  // namespace pynccl::python::mirror
