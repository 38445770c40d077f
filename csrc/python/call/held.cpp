#include "python/call/held.h"

#include <mutex>
#include <utility>
#include <vector>

#include "comm/graph.h"
#include "comm/stream.h"
#include "common/per_process.h"
#include "nccl/device.h"
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

py::object held(const std::shared_ptr<void>& object) {
  if (!object) return py::none();
  return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(object.get()));
}

namespace {

py::list list_of(std::initializer_list<PyObject*> objects) {
  py::list held;
  for (PyObject* object : objects)
    if (object) held.append(py::handle(object));
  return held;
}

// Released by the next holder of the GIL, so that a stream's thread does not wait for it.
struct Finished {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};
Finished& finished() { return common::per_process<Finished>(); }

int release_pending(void*) {
  std::vector<PyObject*> released;
  {
    const std::lock_guard lock(finished().mutex);
    released.swap(finished().objects);
  }
  for (PyObject* object : released) Py_DECREF(object);
  return 0;
}

}  // namespace

void release_soon(PyObject* object) {
  bool scheduled;
  {
    const std::lock_guard lock(finished().mutex);
    finished().objects.push_back(object);
    scheduled = finished().objects.size() > 1;
  }
  // If Python's list of pending calls is full, a later call releases them.
  if (!scheduled && Py_IsInitialized()) Py_AddPendingCall(&release_pending, nullptr);
}

void release_finished() { release_pending(nullptr); }

void keep_alive_in_capture(const Library& library, CUstream stream,
                           std::initializer_list<PyObject*> objects) {
  Graph::keep_alive(library, stream, hold(list_of(objects)));
}

namespace {

struct OnStream {
  std::unique_ptr<Event> done;
  py::object object;
};

// The objects of keep_alive_until_done(), protected by the GIL. Never destroyed, since the
// interpreter may be gone by then.
std::vector<OnStream>& on_streams() {
  static std::vector<OnStream>* all = nullptr;
  if (!all) all = new std::vector<OnStream>;
  return *all;
}

// Ends the wait for an event: after a failure of the device, nothing uses the memory.
bool is_done(const Event& event) {
  try {
    return event.query();
  } catch (const DriverFailure&) {
    return true;
  }
}

void release_done() {
  if (Graph::any_capture()) return;  // a query may invalidate a capture
  std::vector<OnStream> released;    // released on return, since that may run Python code
  std::erase_if(on_streams(), [&](OnStream& one) {
    if (!is_done(*one.done)) return false;
    released.push_back(std::move(one));
    return true;
  });
}

}  // namespace

void keep_alive_until_done(Communicator& communicator, CUstream stream,
                           std::initializer_list<PyObject*> objects, PyObject* owner) {
  const Library& library = communicator.library();
  if (library.memory() == Memory::kHost) {
    if (!outlives_call(library, stream) || is_capturing(library, stream)) return;
    release_finished();
    py::list held = list_of(objects);
    if (owner) held.append(py::handle(owner));
    if (held.empty()) return;
    const auto release = [](void* kept) { release_soon(static_cast<PyObject*>(kept)); };
    if (library.driver().LaunchHostFunc(stream, release, held.ptr()) == CUDA_SUCCESS)
      held.release();
    return;
  }
  if (!owner) return;
  release_done();
  const DeviceScope device(library, communicator.device());
  if (is_capturing(library, stream)) return;  // the event could not be queried
  auto done = std::make_unique<Event>(communicator.shared_library(), communicator.device(), false);
  done->record(stream);
  on_streams().push_back({std::move(done), py::reinterpret_borrow<py::object>(owner)});
}

}  // namespace pynccl::python
