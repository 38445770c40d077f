#include "python/mirror/channel.h"

#include <pybind11/stl.h>

#include "python/mirror/bind.h"

namespace pynccl::python::mirror {

const std::shared_ptr<Stream>& Channel::stream() {
  if (!stream_)
    stream_ = std::make_shared<Stream>(communicator_->shared_library(), communicator_->device(),
                                       priority_);
  return stream_;
}

AsyncQueue& Channel::queue() {
  if (!queue_) [[unlikely]]
    queue_.emplace(communicator_->shared_library(), stream());
  return *queue_;
}

void explain(const py::object& channel, PyObject* name) {
  py::error_already_set raised;
  try {
    if (is_library_error(raised))
      raise(channel.attr("explain")(py::handle(name), raised.value()));
    else
      raised.restore();
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

namespace {

// For functions that pybind11 calls: body's result, or the exception that explained() raised.
template <class Body>
py::object run(const py::object& self, const Channel& channel, const py::object& name,
               Body&& body) {
  if (!channel.usable()) {
    raise(self.attr("timed_out")(name));
    throw py::error_already_set();
  }
  auto result = py::reinterpret_steal<py::object>(explained(self, name.ptr(), body));
  if (!result) throw py::error_already_set();
  return result;
}

py::object call(const py::object& self, const py::object& name, const py::object& issue) {
  auto& channel = py::cast<Channel&>(self);
  return run(self, channel, name, [&] {
    const Channel::Bracket bracket(channel);
    issue(channel.shared_communicator(), py::none());
    return Py_NewRef(Py_None);
  });
}

py::object start(const py::object& self, const py::object& name, const py::object& issue,
                 const py::object& tensor, const py::object& result, std::optional<int> source) {
  auto& channel = py::cast<Channel&>(self);
  return run(self, channel, name, [&] {
    Work work(self, channel, name, view_tensor("tensor", tensor.ptr(), nullptr, nullptr));
    work.result = result;
    work.source = source.value_or(-1);
    return channel.start(std::move(work), py::make_tuple(issue, result), [&](CUstream stream) {
      issue(channel.shared_communicator(), reinterpret_cast<std::uintptr_t>(stream));
    });
  });
}

}  // namespace

void bind_channel(py::module_& m) {
  py::class_<Channel>(m, "Channel",
                      R"(A communicator with the stream of its asynchronous operations.

What it calls `issue` takes the communicator and the stream as collectives take it, and calls NCCL.
What NCCL or the driver raises in it becomes what explain(name, error) of the class makes of it.

Args:
    comm: the communicator.
    priority: of the stream.)")
      .def(py::init<std::shared_ptr<Communicator>, int>(), py::arg("comm"), py::arg("priority") = 0)
      .def_property_readonly("comm", &Channel::shared_communicator, "The communicator.")
      .def_property_readonly("stream", &Channel::stream, "The communication stream.")
      .def_property_readonly("usable", &Channel::usable, "Whether calls are taken.")
      .def("refuse", &Channel::refuse,
           "Takes no call from now on: raises what timed_out(name) of the class gives.")
      .def("call", &call, py::arg("name"), py::arg("issue"), R"(Issue on the current stream.

Args:
    name: the operation's, for messages.
    issue: see above.)")
      .def("start", &start, py::arg("name"), py::arg("issue"), py::arg("tensor"), py::arg("result"),
           py::arg("source") = py::none(),
           R"(Issue on the communication stream, after what is on the current one.

Args:
    name: the operation's, for messages.
    issue: see above; kept until the work was waited for, with all that it refers to.
    tensor: the first of the operation's, whose framework knows the current stream.
    result: the tensors that it writes, in a list.
    source: the rank that it receives from.

Returns:
    The Work.)")
      .def("call_under_way", &Channel::call_under_way,
           "The number of the synchronous call that is under way, 0 for none.")
      .def("oldest", &Channel::oldest,
           "The number of the oldest asynchronous operation that is not done; None if all are.");
}

}  // namespace pynccl::python::mirror
