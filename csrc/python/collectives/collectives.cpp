// The collectives, barrier, send and recv as methods of Communicator: parse the arguments, let the
// factory build the checked Operation, and issue it or add it to the thread's group.
#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "comm/graph.h"
#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/collectives/operation_factory.h"
#include "python/comm/group.h"

namespace pynccl::python {
namespace {

using Kind = OperationKind;

template <Kind K>
OperationArguments parse(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr MethodTraits traits = method_traits<K>();
  constexpr std::size_t required = 1 + traits.takes_rank();
  constexpr std::size_t positional = required + traits.reduces;
  using MethodSignature = Signature<positional + 2 * traits.takes_out + 3, positional, required>;
  static const MethodSignature signature(traits.name, [] {
    typename MethodSignature::Names names;
    std::size_t next = 0;
    names[next++] = "tensor";
    if (traits.takes_rank()) names[next++] = traits.root_or_peer;
    if (traits.reduces) names[next++] = "op";
    if (traits.takes_out) names[next++] = "out";
    names[next++] = "stream";
    names[next++] = "count";
    names[next++] = "dtype";
    if (traits.takes_out) names[next++] = "config";  // all but send and recv
    return names;
  }());
  typename MethodSignature::Values storage;
  PyObject* const* values = signature.parse(args, nargs, kwnames, storage);
  OperationArguments a;
  std::size_t next = 0;
  a.tensor = values[next++];
  if constexpr (traits.takes_rank()) a.root_or_peer = values[next++];
  if constexpr (traits.reduces) a.op = given(values[next++]);
  if constexpr (traits.takes_out) a.out = given(values[next++]);
  a.stream = given(values[next++]);
  a.count = given(values[next++]);
  a.dtype = given(values[next++]);
  if constexpr (traits.takes_out) a.config = given(values[next++]);
  return a;
}

// Passed by value: an operation whose address is not taken stays in registers.
[[gnu::noinline]] void add_to(Group& group, PyObject* self, Communicator& communicator,
                              const Operation operation, const OperationArguments a) {
  group.batch().add(communicator, operation, {self, a.tensor, a.out, a.stream, a.op}, a.owner());
}

// Issues a checked operation or adds it to the thread's group. An operation with a CollConfig has
// another kind than K.
template <Kind K>
[[gnu::always_inline]] inline PyObject* perform(PyObject* self, Communicator& communicator,
                                                const Operation& operation,
                                                const OperationArguments& a) {
  if (Group* group = Group::active()) [[unlikely]] {
    add_to(*group, self, communicator, operation, a);
  } else {
    if (Graph::any_capture()) [[unlikely]]
      keep_alive_in_capture(communicator.library(), operation.stream,
                            {a.tensor, a.out, a.op, a.owner()});
    {
      const GilReleased released;  // on CPUs the call lasts until the data has arrived
      if (a.config) [[unlikely]]
        communicator.issue(operation);
      else
        communicator.issue(K, operation);
    }
    if (a.owner() || outlives_call(communicator.library(), operation.stream)) [[unlikely]]
      keep_alive_until_done(communicator, operation.stream, {a.tensor, a.out, a.op}, a.owner());
  }
  return Py_NewRef(Py_None);
}

template <Kind K>
PyObject* method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr MethodTraits traits = method_traits<K>();
  return guarded([&]() __attribute__((always_inline)) {
    auto& communicator = unwrap<Communicator>(self);
    if constexpr (traits.one_block())
      if (nargs == 1 + traits.takes_rank() && !kwnames) [[likely]] {
        Operation operation;
        OperationArguments arguments;
        arguments.tensor = args[0];
        if (make_plain_operation<K>(communicator, args, operation)) [[likely]]
          return perform<K>(self, communicator, operation, arguments);
      }
    Owners owners;
    OperationArguments arguments = parse<K>(args, nargs, kwnames);
    arguments.owners = &owners;
    const Operation operation = make_operation<K>(communicator, arguments);
    return perform<K>(self, communicator, operation, arguments);
  });
}

void barrier(const py::object& self, const py::object& stream) {
  auto& communicator = self.cast<Communicator&>();
  const auto allocate = [&communicator, device = communicator.device()] {
    return allocate_shared(communicator.shared_library(), device, 1);
  };
  const auto address = reinterpret_cast<std::uintptr_t>(communicator.barrier_memory(allocate));
  // An address has no framework, and thus no current stream.
  const py::object on = stream.is_none() ? py::int_(0) : stream;
  self.attr("all_reduce")(address, py::arg("count") = 1, py::arg("dtype") = "uint8",
                          py::arg("stream") = on);
}

// The docstrings: that of the operation, followed by those of its common arguments.
namespace docs {

constexpr char kCommon[] =
    R"(    stream: a stream, an object with __cuda_stream__, or a cudaStream_t as an integer; None is
        the current stream of the tensor's framework. On CPUs, None runs the operation on the
        calling thread, and the call returns when it is done.
    count, dtype: the number of elements and their type, for buffers passed as integer addresses.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed; nothing was issued.
    NcclError: NCCL failed.
    NcclTimeoutError: this operation or an earlier one on the communicator exceeded its time limit
        (Config.timeout).
)";

// For reductions.
constexpr char kOp[] =
    R"(    op: a RedOp, a str ("sum", "avg", "max", "min", "prod") or a value of torch's ReduceOp. None is
        RedOp.SUM.
)";

// For the operations that take a CollConfig: all collectives.
constexpr char kConfig[] =
    R"(    config: a CollConfig, the same on every rank. Requires NCCL 2.31.
)";

constexpr char kAllReduce[] =
    R"(Reduce the tensors of all ranks elementwise; every rank gets the result (ncclAllReduce).

Args:
    tensor: the input, contiguous, of any shape and any dtype that NCCL supports. If out is None,
        it also receives the result.
    out: receives the result; the same number of elements and dtype as tensor.
)";

constexpr char kBroadcast[] =
    R"(Copy the root's tensor to every rank (ncclBroadcast).

Args:
    tensor: the source on the root. On the other ranks, the destination if out is None.
    root: the rank of the source.
    out: the destination; the same number of elements and dtype as tensor.
)";

constexpr char kReduce[] =
    R"(Reduce the tensors of all ranks elementwise; the root gets the result (ncclReduce).

Args:
    tensor: the input, of any shape. On the root, it also receives the result if out is None.
    root: the rank that receives the result.
    out: receives the result on the root; the same number of elements and dtype as tensor. Not
        written on the other ranks.
)";

constexpr char kAllGather[] =
    R"(Gather the tensors of all ranks, in rank order, on every rank (ncclAllGather).

Args:
    tensor: this rank's block. If out is None, a buffer of nranks blocks with this rank's block in
        position.
    out: receives the blocks; nranks times the elements of tensor, the same dtype.
)";

constexpr char kReduceScatter[] =
    R"(Reduce the tensors of all ranks elementwise; rank i gets block i (ncclReduceScatter).

Args:
    tensor: nranks blocks. If out is None, this rank's block receives the result.
    out: receives this rank's block; the same dtype as tensor.
)";

constexpr char kAllToAll[] =
    R"(Send block i of tensor to rank i and receive block i of out from rank i (ncclAlltoAll).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: nranks blocks to send.
    out: receives nranks blocks; the same dtype as tensor. It must not overlap tensor, since NCCL
        does not support all-to-all in place.
)";

constexpr char kGather[] =
    R"(Gather the tensors of all ranks, in rank order, on the root (ncclGather).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: this rank's block. On the root if out is None, a buffer of nranks blocks with the root's
        block in position.
    root: the rank that receives the result.
    out: receives the blocks on the root; nranks times the elements of tensor, the same dtype.
        Unused on the other ranks.
)";

constexpr char kScatter[] =
    R"(Send block i of the root's tensor to rank i (ncclScatter).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: nranks blocks on the root. On the other ranks, the destination if out is None, otherwise
        unused.
    root: the rank of the source.
    out: receives one block; the same dtype as tensor. If None on the root, its block stays in
        place.
)";

constexpr char kSend[] =
    R"(Send a tensor to a peer (ncclSend).

The peer must call recv() with the same number of elements and dtype.

Args:
    tensor: the data, contiguous, of any shape.
    peer: the receiving rank.
)";

constexpr char kRecv[] =
    R"(Receive a tensor from a peer (ncclRecv).

The peer must call send() with the same number of elements and dtype.

Args:
    tensor: the destination, contiguous, of any shape.
    peer: the sending rank.
)";

}  // namespace docs

// The beginning of a docstring, for inspect.signature().
template <Kind K>
std::string signature_text() {
  static constexpr MethodTraits traits = method_traits<K>();
  std::string text = std::string(traits.name) + "($self, tensor";
  if constexpr (traits.takes_rank()) text += std::string(", ") + traits.root_or_peer;
  if (traits.reduces) text += ", op=None";
  text += ", *";
  if (traits.takes_out) text += K == Kind::kAllToAll ? ", out" : ", out=None";
  text += ", stream=None, count=None, dtype=None";
  if (traits.takes_out) text += ", config=None";
  return text + ")\n--\n\n";
}

template <Kind K>
void add_operation(const char* doc) {
  static constexpr MethodTraits traits = method_traits<K>();
  static const std::string text = signature_text<K>() + doc + (traits.reduces ? docs::kOp : "") +
                                  (traits.takes_out ? docs::kConfig : "") + docs::kCommon;
  static PyMethodDef definition = fast_method(traits.name, &method<K>, text.c_str());
  add_method(py::type::of<Communicator>(), definition);
}

}  // namespace

void bind_collectives(py::module_&) {
#define OPERATION(kind, ...) add_operation<Kind::k##kind>(docs::k##kind);
#define ONE_SIDED(name, method)
#include "comm/operations.inc"
  add_method<Communicator>("barrier", &barrier, py::kw_only(), py::arg("stream") = py::none(),
                           R"(Synchronize the streams of all ranks with each other (ncclAllReduce).

Work enqueued after the barrier starts when the streams of all ranks have completed the work before
it. Use it to order kernels and functions that load from and store to the memory of other ranks. On
GPUs the call returns immediately; synchronize the stream to block the host as well. The barrier is
an all_reduce of one byte. It can be part of a group and can be captured into a graph.

Args:
    stream: as for the collectives. None is the default stream, on CPUs the calling thread.

Raises:
    TypeError, ValueError: an invalid stream, or the communicator is closed.
    NcclError: NCCL failed, for example because a rank died.)");
}

}  // namespace pynccl::python
