// put_signal(), signal() and wait_signal() as methods of Communicator: validate the arguments,
// build the Operation, and issue it or add it to the group of the thread.
#include <vector>

#include "comm/communicator.h"
#include "comm/graph.h"
#include "comm/window.h"
#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/group.h"
#include "python/convert/integer.h"
#include "python/convert/stream.h"
#include "python/convert/tensor.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

void check_index(const char* name, int index, const Library& library) {
  constexpr int kSince = 23100;
  if (index == 0 || library.version() >= kSince) return;
  throw_value_error(name, index, " needs NCCL ", version_text(kSince), ", the loaded one is ",
                    version_text(library.version()), " and has only 0");
}

// Throws unless both the library and the driver support one-sided operations.
template <auto Function>
void check_available(const Library& library) {
  library.nccl<Function>();
  const int version = library.driver_version();
  if (version >= kOneSidedDriver) return;
  const auto text = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  throw std::runtime_error("one-sided operations need a CUDA driver of version " +
                           text(kOneSidedDriver) + " or later; this one is of version " +
                           text(version));
}

// The index of a signal or a context. Before 2.31, NCCL supports only index 0.
int index_from_python(const char* name, PyObject* value, const Library& library) {
  if (!value) return 0;
  const int index = integer_from_python<int>(name, value);
  if (index < 0) throw_value_error(name, index, " is negative");
  check_index(name, index, library);
  return index;
}

// The stream of an operation without a tensor, and so without a framework whose current stream
// could be used. In a thread that is inside capture(), it is the captured stream.
cudaStream_t stream_without_tensor(const char* method, PyObject* stream, const Library& library) {
  if (stream) return stream_from_python(stream, library);
  if (Graph::any_capture())
    if (const cudaStream_t captured = Graph::redirect(library, nullptr)) return captured;
  if (library.memory() == Memory::kHost) return nullptr;
  throw py::type_error(std::string("stream: ") + method +
                       "() has no tensor to determine the current stream; pass a stream");
}

const Window& window_from_python(PyObject* value, const Communicator& communicator) {
  py::detail::make_caster<Window> caster;
  if (!caster.load(value, false)) throw_type_error("window", "a Window", value);
  const auto& window = py::detail::cast_op<const Window&>(caster);
  if (window.communicator().get() != &communicator)
    throw_value_error("window", "belongs to another communicator");
  return window;
}

// needed: the objects whose memory the operation uses. The graph of a capture keeps them alive.
void issue_one_sided(PyObject* self, Communicator& communicator, const Operation& operation,
                     PyObject* stream, std::initializer_list<PyObject*> needed,
                     PyObject* owner = nullptr) {
  if (Group* group = Group::active()) {
    group->batch().add(communicator, operation, needed, owner);
    group->batch().hold(self);
    if (stream) group->batch().hold(stream);
    return;
  }
  if (Graph::any_capture()) [[unlikely]]
    keep_alive_in_capture(communicator.library(), operation.stream, needed);
  {
    const GilReleased released;
    communicator.issue(operation);
  }
  keep_alive_until_done(communicator, operation.stream, needed, owner);
}

PyObject* put_signal(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return guarded([&] {
    using PutSignature = Signature<9, 4, 3>;
    static const PutSignature signature(
        "put_signal",
        {"tensor", "peer", "window", "offset", "signal", "context", "stream", "count", "dtype"});
    PutSignature::Values storage;
    PyObject* const* values = signature.parse(args, nargs, kwnames, storage);
    auto& communicator = unwrap<Communicator>(self);
    communicator.handle();
    const Library& library = communicator.library();
    check_available<&NcclTable::ncclPutSignal>(library);
    Operation put{};
    put.kind = OperationKind::kPutSignal;
    put.root_or_peer = rank_from_python("peer", values[1], communicator.nranks());
    const Window& window = window_from_python(values[2], communicator);
    put.window = &window;
    if (values[3]) put.offset = integer_from_python<std::size_t>("offset", values[3]);
    put.signal = index_from_python("signal", values[4], library);
    put.context = index_from_python("context", values[5], library);
    Owners owners;
    TensorView tensor =
        view_tensor(owners, "tensor", values[0], given(values[7]), given(values[8]));
    check_placement(tensor, library, communicator.device());
    put.sendbuff = tensor.data;
    put.count = tensor.count;
    put.dtype = tensor.dtype->nccl;
    window.check_put(put);
    PyObject* stream = given(values[6]);
    put.stream = resolve_stream(stream, tensor, library);
    issue_one_sided(self, communicator, put, stream, {values[0], values[2], owners.get()},
                    owners.get());
    return Py_NewRef(Py_None);
  });
}

PyObject* signal(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return guarded([&] {
    using SignalSignature = Signature<4, 1, 1>;
    static const SignalSignature signature("signal", {"peer", "signal", "context", "stream"});
    SignalSignature::Values storage;
    PyObject* const* values = signature.parse(args, nargs, kwnames, storage);
    auto& communicator = unwrap<Communicator>(self);
    communicator.handle();
    check_available<&NcclTable::ncclSignal>(communicator.library());
    Operation operation{};
    operation.kind = OperationKind::kSignal;
    operation.root_or_peer = rank_from_python("peer", values[0], communicator.nranks());
    operation.signal = index_from_python("signal", values[1], communicator.library());
    operation.context = index_from_python("context", values[2], communicator.library());
    PyObject* stream = given(values[3]);
    operation.stream = stream_without_tensor("signal", stream, communicator.library());
    issue_one_sided(self, communicator, operation, stream, {});
    return Py_NewRef(Py_None);
  });
}

int count_from_python(const char* name, PyObject* value) {
  const int count = integer_from_python<int>(name, value);
  if (count < 1) throw_value_error(name, count, " signals, must be at least 1");
  return count;
}

void check_descriptor(const ncclWaitSignalDesc_t& one, Communicator& communicator) {
  const int nranks = communicator.nranks();
  if (one.peer < 0 || one.peer >= nranks) throw_rank("peers", one.peer, nranks);
  if (one.opCnt < 1 || one.sigIdx < 0 || one.ctx < 0)
    throw_value_error("peers", "a descriptor has opCnt=", one.opCnt, ", sigIdx=", one.sigIdx,
                      ", ctx=", one.ctx);
  check_index("peers: sigIdx", one.sigIdx, communicator.library());
  check_index("peers: ctx", one.ctx, communicator.library());
}

// The descriptors of wait_signal(), from a rank, ranks, a dict of ranks and counts, or descriptors.
std::vector<ncclWaitSignalDesc_t> descriptors_from_python(PyObject* peers,
                                                          Communicator& communicator, int count,
                                                          int signal, int context) {
  std::vector<ncclWaitSignalDesc_t> all;
  const auto add_peer = [&](const py::handle& peer, int its_count) {
    all.push_back(
        {its_count, rank_from_python("peers", peer.ptr(), communicator.nranks()), signal, context});
  };
  if (PyIndex_Check(peers)) {
    add_peer(peers, count);
  } else if (PyDict_Check(peers)) {
    // A copy: the conversion of a count may run Python code that changes the dict.
    for (const auto& [peer, its_count] : py::reinterpret_steal<py::dict>(PyDict_Copy(peers)))
      add_peer(peer, count_from_python("peers", its_count.ptr()));
  } else if (!py::isinstance<py::iterable>(peers) || PyUnicode_Check(peers)) {
    throw_type_error("peers", "a rank, ranks, a dict of ranks and counts, or descriptors", peers);
  } else {
    for (const py::handle peer : py::reinterpret_borrow<py::iterable>(peers)) {
      if (PyIndex_Check(peer.ptr())) {
        add_peer(peer, count);
      } else {
        all.push_back(struct_from_python<ncclWaitSignalDesc_t>("peers", peer.ptr()));
        check_descriptor(all.back(), communicator);
      }
    }
  }
  return all;
}

PyObject* wait_signal(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return guarded([&] {
    using WaitSignature = Signature<5, 2, 1>;
    static const WaitSignature signature("wait_signal",
                                         {"peers", "count", "signal", "context", "stream"});
    WaitSignature::Values storage;
    PyObject* const* values = signature.parse(args, nargs, kwnames, storage);
    auto& communicator = unwrap<Communicator>(self);
    communicator.handle();
    check_available<&NcclTable::ncclWaitSignal>(communicator.library());
    const std::vector<ncclWaitSignalDesc_t> descriptors = descriptors_from_python(
        values[0], communicator, values[1] ? count_from_python("count", values[1]) : 1,
        index_from_python("signal", values[2], communicator.library()),
        index_from_python("context", values[3], communicator.library()));
    PyObject* stream = given(values[4]);
    Operation operation{};
    operation.kind = OperationKind::kWaitSignal;
    operation.stream = stream_without_tensor("wait_signal", stream, communicator.library());
    if (descriptors.empty()) return Py_NewRef(Py_None);  // a rank without peers
    // A bytes object, so that a group or a plan can keep it alive.
    const py::bytes signals(reinterpret_cast<const char*>(descriptors.data()),
                            descriptors.size() * sizeof descriptors[0]);
    operation.sendbuff = PyBytes_AS_STRING(signals.ptr());
    operation.count = descriptors.size();
    issue_one_sided(self, communicator, operation, stream, {signals.ptr()});
    return Py_NewRef(Py_None);
  });
}

// The docstrings, each with the signature for inspect.signature().
constexpr char kPutSignal[] =
    "put_signal($self, tensor, peer, window, offset=0, *, signal=0, context=0, stream=None, "
    "count=None, dtype=None)\n--\n\n"
    R"(Write a tensor into a peer's window, then signal the peer (ncclPutSignal, NCCL 2.29).

The peer makes no matching call. When its wait_signal() completes, it sees the data of this put and
of all earlier puts from this rank in the same context.

Args:
    tensor: the data, of any shape, inside a buffer that is registered as a window.
    peer: the rank to write to.
    window: the Window to write into.
    offset: the destination in the peer's window, in bytes from its beginning.
    signal: the index of the signal, from 0 to Config.num_rma_sig - 1.
    context: the index of the context, from 0 to Config.num_rma_ctx - 1.
    stream: a stream, an object with __cuda_stream__, or a cudaStream_t as an integer; None is the
        current stream of the tensor's framework, on CPUs the calling thread.
    count, dtype: the number of elements and their type, if the tensor is an integer address.

Raises:
    TypeError, ValueError: an invalid argument, a window that is closed or belongs to another
        communicator, or a tensor that is empty, lies outside the communicator's symmetric windows
        or does not fit into the peer's window. Nothing was issued.
    MissingFunctionError: the library is older than NCCL 2.29.
    RuntimeError: the CUDA driver is older than 12.5.
    NcclError: NCCL failed.
)";

constexpr char kSignal[] =
    "signal($self, peer, *, signal=0, context=0, stream=None)\n--\n\n"
    R"(Signal a peer without data (ncclSignal, NCCL 2.29).

When its wait_signal() completes, the peer sees the data of all earlier puts from this rank in the
same context. A window must be registered first, unless Config.rma_eager_init is 1.

Args:
    peer: the rank to signal.
    signal: the index of the signal, from 0 to Config.num_rma_sig - 1.
    context: the index of the context, from 0 to Config.num_rma_ctx - 1.
    stream: as for put_signal(). Required on GPUs outside capture(): without a tensor, the current
        stream is unknown.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed; nothing was issued.
    MissingFunctionError: the library is older than NCCL 2.29.
    RuntimeError: the CUDA driver is older than 12.5.
    NcclError: NCCL failed.
)";

constexpr char kWaitSignal[] =
    "wait_signal($self, peers, count=1, *, signal=0, context=0, stream=None)\n--\n\n"
    R"(Wait for signals from peers and consume them (ncclWaitSignal, NCCL 2.29).

    comm.wait_signal(left)                # one signal from one rank
    comm.wait_signal([left, right], 2)    # two from each of two ranks
    comm.wait_signal({left: 1, right: 3})
    comm.wait_signal([raw.ncclWaitSignalDesc_t(opCnt=1, peer=left, sigIdx=2)])

When the wait completes, this rank sees the data of the puts that sent these signals.

Args:
    peers: a rank, an iterable of ranks, a dict from rank to number of signals, or an iterable of
        raw.ncclWaitSignalDesc_t, each with its own signal and context. If empty, the call does
        nothing.
    count: the number of signals to wait for from each rank.
    signal: the index of the signal, from 0 to Config.num_rma_sig - 1.
    context: the index of the context, from 0 to Config.num_rma_ctx - 1.
    stream: the stream that waits, as for put_signal(). Required on GPUs outside capture(): without
        a tensor, the current stream is unknown.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed; nothing was issued.
    MissingFunctionError: the library is older than NCCL 2.29.
    RuntimeError: the CUDA driver is older than 12.5.
    NcclError: a peer died, or NCCL failed.
)";

}  // namespace

void bind_one_sided(py::module_&) {
  const py::type communicator_type = py::type::of<Communicator>();
  static PyMethodDef methods[] = {fast_method("put_signal", &put_signal, kPutSignal),
                                  fast_method("signal", &signal, kSignal),
                                  fast_method("wait_signal", &wait_signal, kWaitSignal)};
  for (PyMethodDef& method : methods) add_method(communicator_type, method);
}

}  // namespace pynccl::python
