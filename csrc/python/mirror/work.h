// An asynchronous operation as Python has it; the Python class Work inherits it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "core/async_operation.h"
#include "python/convert/tensor.h"
#include "python/mirror/native.h"

namespace pynccl::python::mirror {

class Channel;

struct Work {
  Work() = default;  // one that was never started
  // Of an operation on this channel (Python's object and its part in C++); place is one of its
  // tensors, whose framework and device are asked for the current stream.
  Work(py::object channel_object, Channel& channel_part, py::object operation_name,
       const TensorView& place_of_tensor)
      : channel(std::move(channel_object)),
        part(&channel_part),
        name(std::move(operation_name)),
        place(place_of_tensor) {
    place.owner = nullptr;
  }

  CUstream current_stream() const;

  // What NativeType needs.
  template <class F>
  void each(F&& f) {
    f(channel), f(name), f(result), f(error);
  }

  py::object channel;
  Channel* part = nullptr;
  py::object name;
  TensorView place;
  py::object result;  // the tensors that it writes: a list, or the only one
  int source = -1;    // the rank that it receives from
  std::shared_ptr<AsyncOperation> operation;
  py::object error;  // what it has failed with
  bool waited = false;
};

// An instance of the Python class.
PyObject* make_work(Work&& work);

}  // namespace pynccl::python::mirror
