// The class Plan.
#include "comm/graph.h"
#include "comm/overlap.h"
#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/comm/group.h"
#include "python/comm/plan.h"

namespace pynccl::python {

void Plan::enter() {
  if (state_ != State::kNew)
    throw std::invalid_argument("plan: it was recorded before; create another plan");
  Group::of_this_thread().enter(*this);
  state_ = State::kRecording;
}

void Plan::exit(bool failed) {
  try {
    Batch batch = Group::of_this_thread().exit(*this, failed);
    state_ = failed ? State::kFailed : State::kReady;
    if (!failed) batch_ = std::make_shared<const Batch>(std::move(batch));
  } catch (const OverlapError&) {
    state_ = State::kFailed;
    throw;
  }
}

void Plan::close() {
  if (state_ == State::kRecording)
    throw std::invalid_argument("plan: it is being recorded; leave its with block first");
  state_ = State::kClosed;
  batch_.reset();
}

void Plan::replay(PyObject* stream) const {
  if (state_ != State::kReady) [[unlikely]]
    throw std::invalid_argument(why_not_ready());
  std::shared_ptr<const Batch> batch = batch_;
  if (stream) batch = std::make_shared<const Batch>(batch->on_stream(stream));
  if (Group* group = Group::active()) [[unlikely]]
    return group->batch().append(*batch);
  if (Graph::any_capture()) [[unlikely]]
    batch->keep_alive_in_captures();
  {
    const GilReleased released;
    batch->issue();
  }
  batch->keep_alive_until_done();
}

const char* Plan::why_not_ready() const {
  switch (state_) {
    case State::kNew:
      return "plan: it has no recording; use it in a with statement first";
    case State::kRecording:
      return "plan: it is being recorded; leave its with block first";
    case State::kFailed:
      return "plan: an exception ended its recording; create another plan";
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

PyObject* call_plan(PyObject* self, PyObject* args, PyObject* keywords) {
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
  const auto set_call = [](PyHeapTypeObject* type) { type->ht_type.tp_call = &call_plan; };
  py::class_<Plan>(m, "Plan",
                   R"(A recorded sequence of operations. Created by plan().

Calling it issues the operations as one group (ncclGroupStart, ncclGroupEnd), with the recorded
buffers, operators and streams. The plan keeps these objects alive until it is closed or deleted.
Their memory must not move: do not resize or close a buffer meanwhile. Inside group() the operations
become part of that group, inside another plan part of its recording.

Args:
    stream: the stream for all operations: a stream, an object with __cuda_stream__, or a
        cudaStream_t as an integer. None uses the recorded streams.

Raises:
    ValueError: nothing was recorded, or a communicator or window of the plan is closed; nothing was
        issued.
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
      .def("close", &Plan::close,
           "Release the buffers. Closing twice is allowed.\n\nRaises:\n    ValueError: the plan "
           "is being recorded.")
      .def("__len__", &Plan::size, "The number of operations.")
      .def("__repr__", [](const Plan& plan) { return "<pynccl.nccl.Plan " + plan.text() + ">"; });
  m.def(
      "plan", [] { return Plan(); },
      R"(Record the operations of a with block, to issue them with one call.

    with nccl.plan() as step:
        comm.all_reduce(x)
        comm.send(y, 1)
    step()

The block checks the operations and records their buffers, operators and streams, but issues
nothing. step() issues them as one NCCL group, like group(), and only checks that the communicators
and windows are open. A group() inside the block merges with the plan. A stream of None is resolved
when the operation is recorded. After an exception in the block the plan cannot be called, but the
communicators stay usable. A plan cannot begin inside a group or another plan, and communicators and
windows cannot be created inside a plan.

Returns:
    A Plan, a context manager that records.

Raises:
    RuntimeError: at the beginning of the block, inside a group, a plan or a simulation.
    ValueError: at the beginning of the block, if the plan was recorded before; at its end, if
        operations overlap (see group()).)");
}

}  // namespace pynccl::python
