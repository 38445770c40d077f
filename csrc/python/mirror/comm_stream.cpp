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

namespace {

// Releases the tensors of completed asynchronous operations before a synchronous one.
void release_done(CommStream& comm_stream, const py::object& record) {
  if (!comm_stream.has_pending()) return;
  const py::object tensor = py::list(record.attr("calls"))[0].attr("tensor");
  Owners owners;  // not kept: only the device of the tensor is used
  TensorView view = view_tensor(owners, "tensor", tensor.ptr());
  const Library& library = comm_stream.communicator().library();
  comm_stream.release_done(reinterpret_cast<CUstream>(resolve_stream(nullptr, view, library)));
}

// Issues the operation of an OperationRecord.
py::object issue_record(const py::object& self, const py::object& record) {
  auto& comm_stream = py::cast<CommStream&>(self);
  const py::object kind = record.attr("kind");
  const auto enqueue = [&](const py::object& stream) {
    record.attr("enqueue")(comm_stream.shared_communicator(), stream);
  };
  const auto body = [&] {
    const int async_op = PyObject_IsTrue(py::object(record.attr("async_op")).ptr());
    if (async_op < 0) throw py::error_already_set();
    if (!async_op) {
      release_done(comm_stream, record);
      enqueue(py::none());
      return Py_NewRef(Py_None);
    }
    const py::object tensor = record.attr("tensor");
    Owners owners;  // not kept: only the device of the tensor is used
    Work work(self, comm_stream.communicator(), kind, view_tensor(owners, "tensor", tensor.ptr()));
    work.result = record.attr("result");
    work.source = py::cast<std::optional<int>>(record.attr("source")).value_or(-1);
    return comm_stream.start(
        std::move(work), py::make_tuple(record.attr("calls"), record.attr("result")),
        [&](CUstream stream) { enqueue(py::int_(reinterpret_cast<std::uintptr_t>(stream))); });
  };
  auto result =
      py::reinterpret_steal<py::object>(issued(self, kind.ptr(), [&] { return record; }, body));
  if (!result) throw py::error_already_set();
  return result;
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
      .def("issue", &issue_record, py::arg("record"), R"(Issue an operation.

A synchronous operation is enqueued on the current stream. An asynchronous one is enqueued on the
communication stream and runs after the work on the current stream. If NCCL or the driver fails, the
exception returned by the class's explain(kind, error) is raised instead.

Args:
    record: an OperationRecord. Its calls and its result are kept alive until the work was waited
        for.

Returns:
    The Work of an asynchronous operation, None for a synchronous one.)")
      .def("oldest", &CommStream::oldest,
           "The number of the oldest asynchronous operation that is not done, or None.");
}

}  // namespace pynccl::python::mirror
