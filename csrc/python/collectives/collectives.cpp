// The collectives, barrier, send and recv as methods of Communicator: parse the arguments, let the
// factory build the checked Operation, and issue it or add it to the thread's group.
#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "comm/graph.h"
#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/collectives/collective_docs.h"
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
    if (a.owner()) [[unlikely]]
      keep_alive_until_done(communicator, operation.stream, a.owner());
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
  self.attr("all_reduce")(address, py::arg("count") = 1, py::arg("dtype") = "uint8",
                          py::arg("stream") = stream);
}

}  // namespace

void bind_collectives(py::module_&) {
  const py::type communicator_type = py::type::of<Communicator>();
  static const std::string common = collective_docs::kCommon;
#define OPERATION(kind, ...)                                                                   \
  {                                                                                            \
    static const std::string doc =                                                             \
        std::string(collective_docs::k##kind) +                                                \
        (method_traits<Kind::k##kind>().takes_out ? collective_docs::kConfig : "") + common;   \
    static PyMethodDef definition =                                                            \
        fast_method(method_traits<Kind::k##kind>().name, &method<Kind::k##kind>, doc.c_str()); \
    add_method(communicator_type, definition);                                                 \
  }
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
