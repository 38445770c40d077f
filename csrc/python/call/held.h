// References to Python objects, owned and released by code that does not hold the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <memory>

#include "comm/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

// Returns a shared reference that any thread can release, with or without the GIL. Calling hold()
// requires the GIL.
std::shared_ptr<void> hold(py::object object);
// Returns the object passed to hold(); None for an empty reference.
py::object held(const std::shared_ptr<void>& object);

// Keeps objects alive as long as the graph that the stream is being captured into. Skips nullptr,
// and does nothing unless capture() is capturing the stream.
void keep_alive_in_capture(const Library& library, CUstream stream,
                           std::initializer_list<PyObject*> objects);

// Keeps an object alive until the work enqueued on the stream so far is done. Skips nullptr and
// streams that are being captured: keep_alive_in_capture() covers those of capture(), and memory
// used by a graph of another library is managed by that library. Requires the GIL.
void keep_alive_until_done(Communicator& communicator, CUstream stream, PyObject* object);

}  // namespace pynccl::python
