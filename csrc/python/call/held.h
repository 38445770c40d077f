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

// The scope of calls whose objects the caller keeps alive until their work is done.
class HeldByCaller {
 public:
  HeldByCaller() { ++depth_; }
  ~HeldByCaller() { --depth_; }
  HeldByCaller(const HeldByCaller&) = delete;
  HeldByCaller& operator=(const HeldByCaller&) = delete;
  static bool active() { return depth_ != 0; }

 private:
  inline static thread_local int depth_ = 0;
};

// Whether a call returns before its work on the stream is done, and the memory of its arrays could
// be freed and reused meanwhile: on CPUs. GPU frameworks reuse memory in the order of the stream.
inline bool outlives_call(const Library& library, CUstream stream) {
  return reinterpret_cast<std::uintptr_t>(stream) > kStreamPerThread &&
         library.memory() == Memory::kHost && !HeldByCaller::active();
}

// Keeps objects alive until the work enqueued on the stream so far is done: if it outlives_call(),
// the objects that were passed to the call, and on GPUs the owner of memory that no caller holds.
// Skips nullptr and streams that are being captured: keep_alive_in_capture() covers those of
// capture(), and memory used by a graph of another library is managed by that library. Requires the
// GIL.
void keep_alive_until_done(Communicator& communicator, CUstream stream,
                           std::initializer_list<PyObject*> objects, PyObject* owner);

// Releases a reference on the main thread, or in a later call. Any thread can call it, with or
// without the GIL.
void release_soon(PyObject* object);
void release_finished();  // the references of release_soon(), now; requires the GIL

}  // namespace pynccl::python
