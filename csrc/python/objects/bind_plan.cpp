#include "core/graph.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/objects/bind.h"
#include "python/objects/group.h"
#include "python/objects/plan.h"

namespace pynccl::python {

void Plan::enter() {
  if (state_ != State::kNew)
    throw std::invalid_argument("plan: it was recorded before; make another one");
  Group::of_this_thread().enter(*this);
  state_ = State::kRecording;
}

void Plan::exit(bool failed) {
  Batch batch = Group::of_this_thread().exit(*this, failed);
  state_ = failed ? State::kFailed : State::kReady;
  if (!failed) batch_ = std::make_shared<const Batch>(std::move(batch));
}

void Plan::close() {
  if (state_ == State::kRecording)
    throw std::invalid_argument("plan: it is being recorded; leave its with block first");
  state_ = State::kClosed;
  batch_.reset();
}

void Plan::replay(PyObject* stream) const {
  if (state_ != State::kReady) [[unlikely]]
    throw std::invalid_argument(why_not());
  std::shared_ptr<const Batch> batch = batch_;
  if (stream) batch = std::make_shared<const Batch>(batch->on_stream(stream));
  if (Group* group = Group::active()) [[unlikely]]
    return group->batch().append(*batch);
  if (Graph::any_capture()) [[unlikely]]
    batch->hold_in_captures();
  const GilReleased released;
  batch->issue();
}

const char* Plan::why_not() const {
  switch (state_) {
    case State::kNew:
      return "plan: nothing was recorded; use it in a with statement first";
    case State::kRecording:
      return "plan: it is being recorded; leave its with block first";
    case State::kFailed:
      return "plan: an exception ended its recording; make another one";
    default:
      return "plan: it is closed";
  }
}

std::string Plan::text() const {
  switch (state_) {
    case State::kNew:
      return "new";
    case State::kRecording:
      return "being recorded";
    case State::kReady:
      return "of " + std::to_string(size()) + (size() == 1 ? " operation" : " operations");
    case State::kFailed:
      return "failed";
    default:
      return "closed";
  }
}

namespace {

PyObject* call(PyObject* self, PyObject* args, PyObject* keywords) {
  return guarded([&] {
    PyObject* stream = nullptr;
    if (PyTuple_GET_SIZE(args) != 0 || keywords) [[unlikely]] {
      static const char* names[] = {"stream", nullptr};
      if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O:Plan", const_cast<char**>(names),
                                       &stream))
        throw py::error_already_set();
      if (stream == Py_None) stream = nullptr;
    }
    unwrap<Plan>(self).replay(stream);
    return Py_NewRef(Py_None);
  });
}

}  // namespace

void bind_plan(py::module_& m) {
  const auto set_call = [](PyHeapTypeObject* type) { type->ht_type.tp_call = &call; };
  py::class_<Plan>(m, "Plan",
                   R"(A recorded sequence of operations; plan() makes one.

Calling it issues the operations again, as one group, with the buffers, operators and streams that
they were recorded with. The plan keeps these objects alive until it is closed or forgotten; their
memory must stay where it was, so nobody may resize or close a buffer meanwhile. Inside group() the
operations become part of that group, inside another plan part of its recording.

Args:
    stream: issue everything on this stream instead: a stream, an object with __cuda_stream__, or a
        cudaStream_t as an integer.

Raises:
    ValueError: there is no recording, or one of its communicators was closed; nothing was sent.
    NcclError: NCCL failed.)",
                   py::custom_type_setup(set_call))
      .def("__enter__",
           [](const py::object& self) {
             py::cast<Plan&>(self).enter();
             return self;
           })
      .def("__exit__",
           [](Plan& plan, const py::object& type, const py::object&, const py::object&) {
             plan.exit(!type.is_none());
             return false;
           })
      .def("close", &Plan::close, "Lets go of the buffers. Closing twice is no error.")
      .def("__len__", &Plan::size, "How many operations there are.")
      .def("__repr__", [](const Plan& plan) { return "<pynccl.nccl.Plan " + plan.text() + ">"; });
  m.def(
      "plan", [] { return Plan(); },
      R"(Record what the with block calls, to issue it again as one call.

    with nccl.plan() as step:
        comm.all_reduce(x)
        comm.send(y, 1)
    step()

Nothing is sent while it is recorded: operations are checked, their buffers, operators and streams
are kept, and step() issues all of them as one NCCL group, as group() would, without checking
anything again but that the communicators are open. A group() inside merges with it. A stream of
None is resolved when the operation is recorded. An exception in the block leaves an empty plan,
which cannot be called, and usable communicators. A plan is recorded outside of groups and other
plans, and communicators are not made inside.)");
}

}  // namespace pynccl::python
