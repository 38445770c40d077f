// group(), plan() and simulate(), and the classes Plan and Simulation.
#include "comm/overlap.h"
#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/comm/group.h"

namespace pynccl::python {
namespace {

// The context manager of group(). Programs enter one in every step, so it bypasses pybind11's
// dispatcher. Stateless: open groups belong to threads, so one object is enough.
struct GroupContext {};

PyObject* context;

PyObject* enter(PyObject* self, PyObject*) {
  return guarded([&] {
    Group::of_this_thread().enter();
    return Py_NewRef(self);
  });
}

PyObject* exit(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject*) {
  return guarded([&] {
    Group::of_this_thread().exit(nargs != 0 && args[0] != Py_None);
    return Py_NewRef(Py_None);
  });
}

PyObject* group(PyObject*, PyObject*) { return Py_NewRef(context); }

constexpr char kGroupDoc[] =
    "group()\n--\n\n"
    R"(Issue the operations of a with block as one NCCL group (ncclGroupStart, ncclGroupEnd).

Operations are checked when they are called and issued together when the outermost group ends. Sends
and receives in a group cannot deadlock, whatever their order, one thread can drive several ranks,
and communicators created inside are ready after the block. An exception inside the block drops all
operations of the group and leaves the communicators usable. Other calls, such as close() and
abort(), take effect immediately. Groups can be nested and are per thread.

Returns:
    A context manager.

Raises:
    ValueError: at the end of the block, if a communicator or window of the group was closed inside,
        or an operation writes memory that another one uses; nothing was issued.
    NcclError: at the end of the block, if NCCL rejects an operation.)";

// A fixed sequence of operations, recorded and checked once in a with block and then issued any
// number of times with one call.
class Plan : Group::Recorder {
 public:
  Plan() : Recorder{"plan"} {}
  void enter();
  void exit(bool failed);
  void close();  // releases the buffers; closing twice is allowed

  // Issues the operations on stream or, if it is nullptr, on the recorded streams. Inside a group
  // it adds them to the group. Throws std::invalid_argument if nothing was recorded.
  void replay(PyObject* stream) const;

  std::size_t size() const { return batch_ ? batch_->size() : 0; }
  std::string text() const;

 private:
  enum class State { kNew, kRecording, kReady, kFailed, kClosed };

  std::string why_not_ready() const;

  State state_ = State::kNew;
  // Shared with calls in progress, so that close() on another thread does not destroy it.
  std::shared_ptr<const Batch> batch_;
};

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
    throw std::invalid_argument("plan: " + why_not_ready());
  std::shared_ptr<const Batch> batch = batch_;
  if (stream) batch = std::make_shared<const Batch>(batch->on_stream(stream));
  if (Group* group = Group::active()) [[unlikely]]
    return group->batch().append(*batch);
  batch->run();
}

std::string Plan::why_not_ready() const {
  switch (state_) {
    case State::kNew:
      return "it has no recording; use it in a with statement first";
    case State::kRecording:
      return "it is being recorded; leave its with block first";
    case State::kFailed:
      return "an exception ended its recording; create another plan";
    default:
      return "it is closed";
  }
}

std::string Plan::text() const {
  if (state_ != State::kReady) return "not ready: " + why_not_ready();
  return "of " + std::to_string(size()) + (size() == 1 ? " operation" : " operations");
}

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

class Simulation : Group::Recorder {
 public:
  Simulation() : Recorder{"simulate"} {}

  void enter() { Group::of_this_thread().enter(*this); }

  void exit(bool failed) {
    const Batch batch = Group::of_this_thread().exit(*this, failed);
    estimated_time_.reset();
    if (failed) return;
    const GilReleased released;
    estimated_time_ = batch.simulate();
  }

  std::optional<double> estimated_time() const { return estimated_time_; }

 private:
  std::optional<double> estimated_time_;
};

}  // namespace

void bind_group(py::module_& m) {
  const py::class_<GroupContext> context_type(m, "GroupContext", "The context manager of group().");
  static PyMethodDef methods[] = {fast_method("__enter__", &enter, "__enter__($self)\n--\n\n"),
                                  fast_method("__exit__", &exit, "__exit__($self, *args)\n--\n\n")};
  for (PyMethodDef& method : methods) add_method(context_type, method);
  context = py::cast(GroupContext()).release().ptr();
  static PyMethodDef functions[] = {fast_method("group", &group, kGroupDoc), {}};
  if (PyModule_AddFunctions(m.ptr(), functions) != 0) throw py::error_already_set();

  const auto set_call = [](PyHeapTypeObject* type) { type->ht_type.tp_call = &call_plan; };
  py::class_<Plan> plan_type(m, "Plan",
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
                             py::custom_type_setup(set_call));
  add_context(plan_type);
  check_instance_layout<Plan>(py::cast(Plan()));  // held by a unique_ptr
  plan_type
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

  py::class_<Simulation> simulation_type(m, "Simulation",
                                         "A simulated group. Created by simulate().");
  add_context(simulation_type);
  simulation_type.def_property_readonly(
      "estimated_time", &Simulation::estimated_time,
      "The estimated duration of the group in seconds. None before the end "
      "of the block, and if NCCL has no estimate.");
  m.def(
      "simulate", [] { return Simulation(); },
      R"(Estimate the duration of a group without running it (ncclGroupSimulateEnd, NCCL 2.22).

    with nccl.simulate() as s:
        comm.all_reduce(x)
    print(s.estimated_time)

The with block collects and checks operations like group(). At its end NCCL estimates the duration,
without accessing the buffers. All ranks of a communicator must call it, since NCCL connects them
for an algorithm that it has not used before. estimated_time is in seconds (microseconds in nccl.h).
NCCL estimates one collective of the group from its model of the machine. hostnccl adds up all
operations, with constants measured on one machine. The estimate for an empty block, and for
communicators of one rank, is 0.0. A simulation cannot begin inside a group or a plan, and
communicators and windows cannot be created inside a simulation.

Returns:
    A Simulation, a context manager.

Raises:
    RuntimeError: at the beginning of the block, inside a group, a plan or a simulation.
    ValueError: at the end of the block, if NCCL would run an operation instead: an operation of a
        non-blocking communicator, a send or recv, an all_to_all, gather or scatter, or a one-sided
        operation.
    MissingFunctionError: at the end of the block, if the library is older than NCCL 2.22.
    NcclError: at the end of the block, if NCCL rejects an operation.)");
}

}  // namespace pynccl::python
