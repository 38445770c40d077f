#include "python/call/held.h"

#include <vector>

#include "comm/graph.h"
#include "comm/stream.h"
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

void keep_alive_in_capture(const Library& library, CUstream stream,
                           std::initializer_list<PyObject*> objects) {
  py::list held;
  for (PyObject* object : objects)
    if (object) held.append(py::handle(object));
  Graph::keep_alive(library, stream, hold(held));
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

void release_done() {
  if (Graph::any_capture()) return;  // a query may invalidate a capture
  std::vector<OnStream> released;    // released on return, since that may run Python code
  std::erase_if(on_streams(), [&](OnStream& one) {
    if (!one.done->query()) return false;
    released.push_back(std::move(one));
    return true;
  });
}

}  // namespace

void keep_alive_until_done(Communicator& communicator, CUstream stream, PyObject* object) {
  const Library& library = communicator.library();
  if (!object || (library.memory() == Memory::kHost && !stream)) return;
  release_done();
  const DeviceScope device(library, communicator.device());
  if (is_capturing(library, stream)) return;  // the event could not be queried
  auto done = std::make_unique<Event>(communicator.shared_library(), communicator.device(), false);
  done->record(stream);
  on_streams().push_back({std::move(done), py::reinterpret_borrow<py::object>(object)});
}

}  // namespace pynccl::python
