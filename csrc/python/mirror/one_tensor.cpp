// The fast functions with one tensor per rank: two templates, and a table of their parameters.
#include <dlpack/dlpack.h>

#include "comm/communicator.h"
#include "python/call/held.h"
#include "python/collectives/operation_factory.h"
#include "python/mirror/fast_function.h"
#include "python/mirror/process_group.h"

namespace pynccl::python::mirror {
namespace {

using Kind = OperationKind;

// The parameters of a collective besides a tensor, a group and async_op.
struct CollectiveParameters {
  bool out = false;
  bool op = false;
  bool root = false;
};

// Looks up the operator for a value of torch's ReduceOp, a RedOp or a str; nullptr for torch's SUM.
// Returns false for operators that the Python function must convert, such as a str that is not
// interned.
bool find_operator(PyObject* given, PyObject*& op) {
  if (!given || given == classes.operators[0].first) [[likely]]
    return true;
  for (const auto& [one, ours] : classes.operators)
    if (one == given) {
      op = ours;
      return true;
    }
  return false;
}

bool find_flag(PyObject* given, bool& flag) {
  flag = given == Py_True;
  return flag || !given || given == Py_False;
}

// The Python function chooses the operators for booleans and complex numbers.
bool reduces_directly(const DType& dtype) { return dtype.width == 1 && dtype.code != kDLBool; }

template <Kind K>
void send(Communicator& communicator, const Operation& operation) {
  communicator.issue(K, operation);
}

template <Kind K, CollectiveParameters T>
PyObject* collective(const FastFunction& function, PyObject* const* values) {
  const ProcessGroup* group = direct_group(values[kGroup]);
  Owners owners;  // stays empty: tensors own their memory
  OperationArguments arguments;
  arguments.owners = &owners;
  arguments.tensor = values[kTensor];
  bool async_op = false;
  if (!group || !is_tensor(arguments.tensor) || !find_flag(values[kAsyncOp], async_op))
    return fallback();
  if constexpr (T.out) {
    arguments.out = values[kOut];
    if (!is_tensor(arguments.out)) return fallback();
  }
  if constexpr (T.op)
    if (!find_operator(values[kOp], arguments.op)) return fallback();
  if constexpr (T.root) {
    arguments.root_or_peer = group->rank_of(values[kGlobalRank], values[kGroupRank]);
    if (!arguments.root_or_peer) return fallback();
  }

  TensorView view;
  const CommStreamRef* ref = nullptr;
  Operation operation;
  const bool checked_well = passes([&] {
    view_tensor(view, owners, "tensor", arguments.tensor, nullptr, nullptr);
    if constexpr (T.op)
      if (!reduces_directly(*view.dtype)) return false;
    ref = group->comm_stream(view.device_type);
    if (!ref) return false;
    CommStream& comm_stream = *ref->comm_stream;
    cudaStream_t queue = nullptr;
    if (async_op) queue = reinterpret_cast<cudaStream_t>(comm_stream.queue().handle());
    make_operation<K>(comm_stream.communicator(), arguments, view, async_op ? &queue : nullptr,
                      operation);
    return true;
  });
  if (!checked_well) [[unlikely]]
    return fallback();

  Communicator& communicator = ref->comm_stream->communicator();
  const auto name = py::reinterpret_borrow<py::object>(function.name());
  if (!async_op) {
    if (Graph::any_capture()) [[unlikely]]
      keep_alive_in_capture(communicator.library(), operation.stream,
                            {arguments.tensor, arguments.out});
    return issue_now(*ref, name.ptr(), operation.stream, [&] { send<K>(communicator, operation); });
  }
  const auto tensor = py::reinterpret_borrow<py::object>(arguments.tensor);
  Work work(ref->object, ref->comm_stream->communicator(), name, view);
  if constexpr (!T.out) {
    work.result = tensor;
    return issue_async(*ref->comm_stream, std::move(work), tensor,
                       [&] { send<K>(communicator, operation); });
  } else {
    work.result = py::reinterpret_borrow<py::object>(arguments.out);
    return issue_async(*ref->comm_stream, std::move(work), py::make_tuple(tensor, work.result),
                       [&] { send<K>(communicator, operation); });
  }
}

// isend, irecv, send and recv outside a batch, on the communicator of two connected ranks or on the
// group's.
template <bool Sends, bool Async>
PyObject* transfer(const FastFunction&, PyObject* const* values) {
  constexpr Kind kKind = Sends ? Kind::kSend : Kind::kRecv;
  static PyObject* const name = PyUnicode_InternFromString(Sends ? "send" : "recv");
  static PyObject* const ranks[] = {PyLong_FromLong(0), PyLong_FromLong(1)};  // in a pair
  const ProcessGroup* group = direct_group(values[kGroup]);
  Owners owners;  // stays empty: tensors own their memory
  OperationArguments arguments;
  arguments.owners = &owners;
  arguments.tensor = values[kTensor];
  if (!group || !is_tensor(arguments.tensor)) return fallback();
  PyObject* rank = group->rank_of(values[kGlobalRank], values[kGroupRank]);
  if (!rank || !PyLong_CheckExact(rank)) return fallback();
  // recv() returns a global rank.
  if (!Sends && !Async && rank == values[kGroupRank] && !group->is_default()) return fallback();

  TensorView view;
  const CommStreamRef* ref = nullptr;
  Operation operation;
  long peer = -1;
  const bool checked_well = passes([&] {
    view_tensor(view, owners, "tensor", arguments.tensor, nullptr, nullptr);
    peer = PyLong_AsLong(rank);
    const ProcessGroup::Transfer found = group->transfer(view.device_type, peer, Sends);
    ref = found.comm_stream;
    if (!ref) return false;
    CommStream& comm_stream = *ref->comm_stream;
    arguments.root_or_peer = found.peer == peer ? rank : ranks[found.peer];
    cudaStream_t queue = nullptr;
    if (Async) queue = reinterpret_cast<cudaStream_t>(comm_stream.queue().handle());
    make_operation<kKind>(comm_stream.communicator(), arguments, view, Async ? &queue : nullptr,
                          operation);
    return true;
  });
  if (!checked_well) [[unlikely]]
    return fallback();

  Communicator& communicator = ref->comm_stream->communicator();
  if constexpr (Async) {
    const auto tensor = py::reinterpret_borrow<py::object>(arguments.tensor);
    Work work(ref->object, ref->comm_stream->communicator(),
              py::reinterpret_borrow<py::object>(name), view);
    work.result = Sends ? py::object(py::list()) : tensor;
    if (!Sends) work.source = static_cast<int>(peer);
    return issue_async(*ref->comm_stream, std::move(work), tensor,
                       [&] { send<kKind>(communicator, operation); });
  } else {
    if (Graph::any_capture()) [[unlikely]]
      keep_alive_in_capture(communicator.library(), operation.stream, {arguments.tensor});
    PyObject* done =
        issue_now(*ref, name, operation.stream, [&] { send<kKind>(communicator, operation); });
    if (Sends || !done) return done;
    Py_DECREF(done);
    return Py_NewRef(rank == values[kGroupRank] ? rank : values[kGlobalRank]);
  }
}

constexpr Parameter kGroupParameter{"group", kGroup}, kAsyncParameter{"async_op", kAsyncOp},
    kOpParameter{"op", kOp}, kTagParameter{"tag", kTag}, kTensorParameter{"tensor", kTensor},
    kSrcParameter{"src", kGlobalRank}, kGroupSrcParameter{"group_src", kGroupRank},
    kDstParameter{"dst", kGlobalRank}, kGroupDstParameter{"group_dst", kGroupRank};

constexpr Parameters::Expected kSendParameters{
    {kTensorParameter, kDstParameter, kGroupParameter, kTagParameter, kGroupDstParameter}};
constexpr Parameters::Expected kReceiveParameters{
    {kTensorParameter, kSrcParameter, kGroupParameter, kTagParameter, kGroupSrcParameter}};

constexpr FastSpec kOneTensorSpecs[] = {
    {"all_reduce",
     {{kTensorParameter, kOpParameter, kGroupParameter, kAsyncParameter}},
     &collective<Kind::kAllReduce, {.op = true}>},
    {"broadcast",
     {{kTensorParameter, kSrcParameter, kGroupParameter, kAsyncParameter, kGroupSrcParameter}},
     &collective<Kind::kBroadcast, {.root = true}>},
    {"reduce",
     {{kTensorParameter, kDstParameter, kOpParameter, kGroupParameter, kAsyncParameter,
       kGroupDstParameter}},
     &collective<Kind::kReduce, {.op = true, .root = true}>},
    {"all_gather_single",
     {{{"output_tensor", kOut}, {"input_tensor", kTensor}, kGroupParameter, kAsyncParameter}},
     &collective<Kind::kAllGather, {.out = true}>},
    {"reduce_scatter_single",
     {{{"output", kOut}, {"input", kTensor}, kOpParameter, kGroupParameter, kAsyncParameter}},
     &collective<Kind::kReduceScatter, {.out = true, .op = true}>},
    {"isend", kSendParameters, &transfer<true, true>, Direction::kSend},
    {"irecv", kReceiveParameters, &transfer<false, true>, Direction::kReceive},
    {"send", kSendParameters, &transfer<true, false>},
    {"recv", kReceiveParameters, &transfer<false, false>},
};

}  // namespace

std::span<const FastSpec> one_tensor_specs() { return kOneTensorSpecs; }

}  // namespace pynccl::python::mirror
