// References to Python objects that code without the GIL keeps and releases.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

// A shared reference that any thread can release, with or without the GIL. Calling hold() needs the
// GIL.
std::shared_ptr<void> hold(py::object object);
std::shared_ptr<void> hold(std::vector<py::object> objects);
py::object held(const std::shared_ptr<void>& object);  // of hold(object); None for none

// Keeps objects (nullptr is skipped) alive as long as the graph that the stream is captured into;
// does nothing where capture() does not capture the stream.
void hold_in_capture(const Library& library, CUstream stream,
                     std::initializer_list<PyObject*> objects);

// Keeps an object until what has been enqueued on the stream is done. nullptr is skipped, and a
// stream that is being captured: hold_in_capture() does that, and the memory in a graph of another
// library is that library's concern. Needs the GIL.
void hold_until_done(Communicator& communicator, CUstream stream, PyObject* object);

}  // namespace pynccl::python
