// The classes WorkQueue and Work: asynchronous operations on a communication stream of their own.
#include "core/work.h"

#include "python/bindings.h"
#include "python/errors.h"
#include "python/tensor.h"

namespace pynccl::python {
namespace {

// Keeps a Python object alive from code that does not hold the GIL.
std::shared_ptr<void> hold(const py::object& object) {
  const auto let_go = [](void* reference) {
    const py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(reference));
  };
  return {py::object(object).release().ptr(), let_go};
}

// A work as Python has it: it also knows of which framework and device the current stream is asked
// when somebody waits.
struct HeldWork {
  std::shared_ptr<Work> work;
  const Library& library;
  TensorView place;

  void wait() {
    const CUstream current = resolve_stream(nullptr, place, library);
    {
      const py::gil_scoped_release released;
      work->wait(current);
    }
    work->release();
  }

  bool wait_for(double seconds) {
    {
      const py::gil_scoped_release released;
      if (!work->wait_for(seconds)) return false;
    }
    work->release();
    return true;
  }
};

struct Queue : WorkQueue {
  using WorkQueue::WorkQueue;

  void begin_after(const py::object& tensor) {
    place = view_tensor("tensor", tensor.ptr(), nullptr, nullptr);
    if (library().memory() == Memory::kDevice && !place.api)
      throw py::type_error(
          "tensor: asynchronous operations need a tensor with DLPack's C exchange "
          "API, as torch's have since 2.10");
    place.owner = nullptr;
    begin(resolve_stream(nullptr, place, library()));
  }

  HeldWork end_with(const py::object& held) { return {end(hold(held)), library(), place}; }

  TensorView place;
};

}  // namespace

void bind_work(py::module_& m) {
  py::class_<HeldWork>(m, "Work", "What was issued between begin() and end() of a WorkQueue.")
      .def(
          "query", [](const HeldWork& w) { return w.work->done(); }, "Whether it is done.")
      .def("wait", &HeldWork::wait,
           "Makes the current stream of the tensors' framework wait for it; on CPUs the caller.\n"
           "Then it lets go of what it held.")
      .def("wait_for", &HeldWork::wait_for, py::arg("seconds"),
           "Blocks the caller until it is done, which is True, or the time is over.");

  py::class_<Queue>(m, "WorkQueue", R"(A communication stream for asynchronous operations.

Args:
    library: the loaded NCCL.
    stream: a Stream of it.)")
      .def(py::init<std::shared_ptr<Library>, std::shared_ptr<Stream>>(), py::arg("library"),
           py::arg("stream"))
      .def("begin", &Queue::begin_after, py::arg("tensor"),
           "What is issued from now on comes after all that is on the current stream of the "
           "tensor's\nframework.")
      .def("end", &Queue::end_with, py::arg("held"),
           "The Work since begin(). held is kept alive until it was waited for, or is done and "
           "forgotten.")
      .def("oldest", &Queue::oldest,
           "The number of the oldest work that is not done, counted from 0; None if all is done.");
}

}  // namespace pynccl::python
