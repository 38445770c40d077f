// The collectives and point-to-point calls as methods of Communicator: arguments to a checked
// Operation, and that to NCCL or to the group of the thread.
#pragma once

#include "core/communicator.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

// A call's arguments, by name.
struct Arguments {
  PyObject* tensor = nullptr;
  PyObject* peer = nullptr;
  PyObject* op = nullptr;
  PyObject* out = nullptr;
  PyObject* stream = nullptr;
  PyObject* count = nullptr;
  PyObject* dtype = nullptr;
  PyObject* config = nullptr;
};

// The checked operation of a call, for callers other than the methods: of a tensor that they have
// looked at, on that stream (nullptr: on the one that the arguments say).
template <OperationKind K>
Operation checked(Communicator& communicator, const Arguments& arguments, const TensorView& tensor,
                  const cudaStream_t* stream);

}  // namespace pynccl::python
