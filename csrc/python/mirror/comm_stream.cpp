#include "python/mirror/comm_stream.h"

#include <pybind11/stl.h>

#include "python/call/bind.h"
#include "python/convert/stream.h"

namespace pynccl::python::mirror {

const std::shared_ptr<Stream>& CommStream::stream() {
  if (!stream_)
    stream_ = std::make_shared<Stream>(communicator_->shared_library(), communicator_->device(),
                                       priority_);
  return stream_;
}

AsyncQueue& CommStream::queue() {
  if (!queue_) [[unlikely]]
    queue_.emplace(communicator_->shared_library(), stream());
  return *queue_;
}

// The operation is issued, and so ends, when the group ends.
void CommStream::end_with(Group& group, const Work& work) {
  group.at_end([object = work.comm_stream, this, operation = work.operation](bool issued) {
    if (!issued) return operation->drop();
    const std::unique_lock order = lock_order();
    queue().end(operation);
  });
}

void ProfilerRange::set_factory(const py::object& factory) {
  Py_XDECREF(std::exchange(factory_, factory.is_none() ? nullptr : Py_NewRef(factory.ptr())));
}

ProfilerRange::ProfilerRange(PyObject* kind)
    : range_(py::handle(factory_)(py::str("pynccl:{}").format(py::handle(kind)))) {
  range_.attr("__enter__")();
}

ProfilerRange::~ProfilerRange() {
  const py::error_scope current;
  try {
    range_.attr("__exit__")(py::none(), py::none(), py::none());
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the end of a profiler's range");
  }
}

namespace {

// Releases the tensors of completed asynchronous operations before a synchronous one.
void release_done(CommStream& comm_stream, const py::object& tensor) {
  if (!comm_stream.has_pending()) return;
  Owners owners;  // not kept: only the device of the tensor is used
  const TensorView view = view_tensor(owners, "tensor", tensor.ptr());
  const Library& library = comm_stream.communicator().library();
  comm_stream.release_done(reinterpret_cast<CUstream>(resolve_stream(nullptr, view, library)));
}

// Issues a Call.
py::object issue_call(const py::object& self, const py::object& call) {
  auto& comm_stream = py::cast<CommStream&>(self);
  const py::object kind = call.attr("kind"), tensor = call.attr("tensor");
  const auto enqueue = [&](const py::object& stream) {
    call.attr("enqueue")(comm_stream.shared_communicator(), stream);
  };
  const auto body = [&] {
    if (!py::cast<bool>(call.attr("async_op"))) {
      release_done(comm_stream, tensor);
      enqueue(py::none());
      return Py_NewRef(Py_None);
    }
    Owners owners;  // not kept: only the device of the tensor is used
    Work work(self, comm_stream.communicator(), kind, view_tensor(owners, "tensor", tensor.ptr()));
    work.result = call.attr("result");
    work.source = py::cast<std::optional<int>>(call.attr("source")).value_or(-1);
    return comm_stream.start(std::move(work), call, [&](CUstream stream) {
      const HeldByCaller by_work;
      enqueue(py::int_(reinterpret_cast<std::uintptr_t>(stream)));
    });
  };
  auto result = py::reinterpret_steal<py::object>(issued(self, kind.ptr(), body));
  if (!result) throw py::error_already_set();
  return result;
}

void check_tensor(const std::string& name, const py::object& tensor, Communicator* comm) {
  Owners owners;
  TensorView view = view_tensor(owners, name.c_str(), tensor.ptr());
  if (comm) check_placement(view, comm->library(), comm->device());
}

}  // namespace

void bind_comm_stream(py::module_& m) {
  py::class_<CommStream>(m, "CommStream",
                         R"(A communicator and the stream of its asynchronous operations.

Args:
    comm: the communicator.
    priority: the priority of the stream.)")
      .def(py::init<std::shared_ptr<Communicator>, int>(), py::arg("comm"), py::arg("priority") = 0)
      .def_property_readonly("comm", &CommStream::shared_communicator, "The communicator.")
      .def_property_readonly("stream", &CommStream::stream, "The communication stream.")
      .def("issue", &issue_call, py::arg("call"), R"(Issue an operation.

If NCCL or the driver fails, the exception returned by the class's explain(kind, error) is raised
instead.

Args:
    call: a Call, which is kept alive until the work was waited for.

Returns:
    The Work of an asynchronous operation, None for a synchronous one.)")
      .def("oldest", &CommStream::oldest,
           "The number of the oldest asynchronous operation that is not done, or None.");
  m.def("set_operation_range", &ProfilerRange::set_factory, py::arg("factory"),
        "Set the function that creates a context manager for each operation of the mirror from a "
        "name such as 'pynccl:all_reduce'. None removes it.");
  m.def("check_tensor", &check_tensor, py::arg("name"), py::arg("tensor"),
        py::arg("comm") = py::none(),
        R"(Check that an operation can use a tensor.

Args:
    name: the argument, for the error text.
    tensor: the tensor.
    comm: the communicator of the operation; None skips the check of the device.

Raises:
    ValueError: it is not contiguous, of a dtype that NCCL lacks, or on another device.)");
}

}  // namespace pynccl::python::mirror
