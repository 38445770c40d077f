// The fast functions on one tensor per rank: a table that says what differs, and two templates.
#include <dlpack/dlpack.h>

#include "core/issue.h"
#include "python/call/held.h"
#include "python/collectives/operation_factory.h"
#include "python/mirror/function.h"
#include "python/mirror/issue.h"

namespace pynccl::python::mirror {
namespace {

using Kind = OperationKind;

// Which of a function's parameters is what; -1: it has none such.
struct Places {
  Kind kind;
  int group;
  int async_op;
  int tensor = 0;
  int out = -1;
  int op = -1;
  long peer = -1;
  int group_peer = -1;
};

// NCCL's operator for torch's: nullptr for SUM. False for one that is not among the five.
bool find_operator(PyObject* given, PyObject*& op) {
  if (!given || given == names.operators[0].first) [[likely]]
    return true;
  for (const auto& [of_torch, ours] : names.operators)
    if (of_torch == given) {
      op = ours;
      return true;
    }
  return false;
}

bool find_flag(PyObject* given, bool& flag) {
  flag = given == Py_True;
  return flag || !given || given == Py_False;
}

// The operators on booleans and complex numbers are Python's business.
bool reduces_as_it_is(const DType& dtype) { return dtype.width == 1 && dtype.code != kDLBool; }

template <Kind K>
void send(Communicator& communicator, const Operation& operation) {
  communicator.issue(K, operation);
  communicator.wait_accepted();
}

template <Places P>
PyObject* collective(const Function& function, PyObject* const* values) {
  const ProcessGroup* group = direct_group(values[P.group]);
  OperationArguments arguments;
  arguments.tensor = values[P.tensor];
  bool async_op = false;
  if (!group || !is_tensor(arguments.tensor) || !find_flag(values[P.async_op], async_op))
    return declined();
  if constexpr (P.out >= 0) {
    arguments.out = values[P.out];
    if (!is_tensor(arguments.out)) return declined();
  }
  if constexpr (P.op >= 0)
    if (!find_operator(values[P.op], arguments.op)) return declined();
  if constexpr (P.peer >= 0) {
    arguments.root_or_peer = group->rank_of(values[P.peer], values[P.group_peer]);
    if (!arguments.root_or_peer) return declined();
  }

  TensorView view;
  const ProcessGroup::Link* link = nullptr;
  Operation operation;
  const bool checked_well = passes([&] {
    view_tensor(view, "tensor", arguments.tensor, nullptr, nullptr);
    if constexpr (P.op >= 0)
      if (!reduces_as_it_is(*view.dtype)) return false;
    link = group->channel(view.device_type);
    if (!link) return false;
    Channel& channel = *link->channel;
    cudaStream_t queue = nullptr;
    if (async_op) queue = reinterpret_cast<cudaStream_t>(channel.queue().handle());
    make_operation<P.kind>(channel.communicator(), arguments, view, async_op ? &queue : nullptr,
                           operation);
    return true;
  });
  if (!checked_well) [[unlikely]]
    return declined();

  Communicator& communicator = link->channel->communicator();
  if (!async_op) {
    if (Graph::any_capture()) [[unlikely]]
      hold_in_capture(communicator.library(), operation.stream, {arguments.tensor, arguments.out});
    return issue_now(*link, function.name(), [&] { send<P.kind>(communicator, operation); });
  }
  const auto tensor = py::reinterpret_borrow<py::object>(arguments.tensor);
  const auto name = py::reinterpret_borrow<py::object>(function.name());
  Work work(link->object, *link->channel, name, view);
  if constexpr (P.out < 0) {
    work.result = tensor;
    return issue_async(std::move(work), tensor, [&] { send<P.kind>(communicator, operation); });
  } else {
    work.result = py::reinterpret_borrow<py::object>(arguments.out);
    return issue_async(std::move(work), py::make_tuple(tensor, work.result),
                       [&] { send<P.kind>(communicator, operation); });
  }
}

// isend, irecv, send and recv outside a batch, between two ranks that have met.
template <bool Sends, bool Async>
PyObject* transfer(const Function&, PyObject* const* values) {
  constexpr Kind kKind = Sends ? Kind::kSend : Kind::kRecv;
  static PyObject* const name = PyUnicode_InternFromString(Sends ? "send" : "recv");
  static PyObject* const ranks[] = {PyLong_FromLong(0), PyLong_FromLong(1)};
  const ProcessGroup* group = direct_group(values[2]);
  OperationArguments arguments;
  arguments.tensor = values[0];
  if (!group || !is_tensor(arguments.tensor)) return declined();
  PyObject* rank = group->rank_of(values[1], values[4]);
  if (!rank || !PyLong_CheckExact(rank)) return declined();
  // What recv() returns is a global rank.
  if (!Sends && !Async && rank == values[4] && !group->is_default()) return declined();

  TensorView view;
  const ProcessGroup::Link* link = nullptr;
  Operation operation;
  long peer = -1;
  const bool checked_well = passes([&] {
    view_tensor(view, "tensor", arguments.tensor, nullptr, nullptr);
    peer = PyLong_AsLong(rank);
    link = group->pair(view.device_type, peer, Sends);
    if (!link) return false;
    Channel& channel = *link->channel;
    arguments.root_or_peer = ranks[1 - channel.communicator().rank()];
    cudaStream_t queue = nullptr;
    if (Async) queue = reinterpret_cast<cudaStream_t>(channel.queue().handle());
    make_operation<kKind>(channel.communicator(), arguments, view, Async ? &queue : nullptr,
                          operation);
    return true;
  });
  if (!checked_well) [[unlikely]]
    return declined();

  Communicator& communicator = link->channel->communicator();
  if constexpr (Async) {
    const auto tensor = py::reinterpret_borrow<py::object>(arguments.tensor);
    Work work(link->object, *link->channel, py::reinterpret_borrow<py::object>(name), view);
    work.result = Sends ? py::object(py::list()) : tensor;
    if (!Sends) work.source = static_cast<int>(peer);
    return issue_async(std::move(work), tensor, [&] { send<kKind>(communicator, operation); });
  } else {
    if (Graph::any_capture()) [[unlikely]]
      hold_in_capture(communicator.library(), operation.stream, {arguments.tensor});
    PyObject* done = issue_now(*link, name, [&] { send<kKind>(communicator, operation); });
    if (Sends || !done) return done;
    Py_DECREF(done);
    return Py_NewRef(rank == values[4] ? rank : values[1]);
  }
}

constexpr Form kForms[] = {
    {"all_reduce",
     {"tensor", "op", "group", "async_op"},
     &collective<{.kind = Kind::kAllReduce, .group = 2, .async_op = 3, .op = 1}>},
    {"broadcast",
     {"tensor", "src", "group", "async_op", "group_src"},
     &collective<{
         .kind = Kind::kBroadcast, .group = 2, .async_op = 3, .peer = 1, .group_peer = 4}>},
    {"reduce",
     {"tensor", "dst", "op", "group", "async_op", "group_dst"},
     &collective<{
         .kind = Kind::kReduce, .group = 3, .async_op = 4, .op = 2, .peer = 1, .group_peer = 5}>},
    {"all_gather_single",
     {"output_tensor", "input_tensor", "group", "async_op"},
     &collective<{.kind = Kind::kAllGather, .group = 2, .async_op = 3, .tensor = 1, .out = 0}>},
    {"reduce_scatter_single",
     {"output", "input", "op", "group", "async_op"},
     &collective<{
         .kind = Kind::kReduceScatter, .group = 3, .async_op = 4, .tensor = 1, .out = 0, .op = 2}>},
    {"isend",
     {"tensor", "dst", "group", "tag", "group_dst"},
     &transfer<true, true>,
     Direction::kSend},
    {"irecv",
     {"tensor", "src", "group", "tag", "group_src"},
     &transfer<false, true>,
     Direction::kReceive},
    {"send", {"tensor", "dst", "group", "tag", "group_dst"}, &transfer<true, false>},
    {"recv", {"tensor", "src", "group", "tag", "group_src"}, &transfer<false, false>},
};

}  // namespace

std::span<const Form> one_tensor_forms() { return kForms; }

}  // namespace pynccl::python::mirror
