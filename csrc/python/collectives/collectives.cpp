#include "python/collectives/collectives.h"

#include "core/graph.h"
#include "core/issue.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/collectives/bind.h"
#include "python/collectives/collective_docs.h"
#include "python/convert/integer.h"
#include "python/convert/rank_argument.h"
#include "python/convert/red_op.h"
#include "python/convert/stream.h"
#include "python/convert/tensor.h"
#include "python/objects/coll_config.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

using Kind = OperationKind;

// What differs between the methods. A tensor is the whole buffer of a rank ("all") or one block of
// it.
struct Shape {
  const char* name;
  const char* peer;  // the name of the rank argument, nullptr where there is none
  bool reduces;
  bool takes_out;
  // Blocks in the send and receive buffers: 1, or 0 for one per rank.
  int send_blocks;
  int recv_blocks;
};

template <Kind K>
constexpr Shape shape_of() {
  switch (K) {
    case Kind::kAllReduce:
      return {"all_reduce", nullptr, true, true, 1, 1};
    case Kind::kBroadcast:
      return {"broadcast", "root", false, true, 1, 1};
    case Kind::kReduce:
      return {"reduce", "root", true, true, 1, 1};
    case Kind::kAllGather:
      return {"all_gather", nullptr, false, true, 1, 0};
    case Kind::kReduceScatter:
      return {"reduce_scatter", nullptr, true, true, 0, 1};
    case Kind::kAllToAll:
      return {"all_to_all", nullptr, false, true, 0, 0};
    case Kind::kGather:
      return {"gather", "root", false, true, 1, 0};
    case Kind::kScatter:
      return {"scatter", "root", false, true, 0, 1};
    case Kind::kSend:
      return {"send", "peer", false, false, 1, 1};
    case Kind::kRecv:
      return {"recv", "peer", false, false, 1, 1};
  }
}

PyObject* given(PyObject* value) { return value == Py_None ? nullptr : value; }

template <Kind K>
Arguments parse(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Shape shape = shape_of<K>();
  constexpr std::size_t required = 1 + (shape.peer != nullptr);
  constexpr std::size_t positional = required + shape.reduces;
  using MethodSignature = Signature<positional + 2 * shape.takes_out + 3, positional, required>;
  static const MethodSignature signature(shape.name, [] {
    typename MethodSignature::Names names;
    std::size_t next = 0;
    names[next++] = "tensor";
    if (shape.peer) names[next++] = shape.peer;
    if (shape.reduces) names[next++] = "op";
    if (shape.takes_out) names[next++] = "out";
    names[next++] = "stream";
    names[next++] = "count";
    names[next++] = "dtype";
    if (shape.takes_out) names[next++] = "config";  // not of messages
    return names;
  }());
  typename MethodSignature::Values storage;
  PyObject* const* values = signature.parse(args, nargs, kwnames, storage);
  Arguments a;
  std::size_t next = 0;
  a.tensor = values[next++];
  if constexpr (shape.peer != nullptr) a.peer = values[next++];
  if constexpr (shape.reduces) a.op = given(values[next++]);
  if constexpr (shape.takes_out) a.out = given(values[next++]);
  a.stream = given(values[next++]);
  a.count = given(values[next++]);
  a.dtype = given(values[next++]);
  if constexpr (shape.takes_out) a.config = given(values[next++]);
  return a;
}

// The mistakes, out of the way of the calls that have none: cold code is laid out elsewhere and
// takes no registers of the function that it is called from.
[[noreturn, gnu::cold, gnu::noinline]] void throw_size(const TensorView& view, std::size_t needed,
                                                       const char* why) {
  throw py::value_error(std::string(view.argument) + ": has " +
                        std::to_string(view.count / view.dtype->width) + " elements, must have " +
                        std::to_string(needed / view.dtype->width) + why);
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_blocks(const TensorView& view,
                                                         std::size_t nranks) {
  throw py::value_error(
      std::string(view.argument) + ": has " + std::to_string(view.count / view.dtype->width) +
      " elements, must be a multiple of the " + std::to_string(nranks) + " ranks");
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_dtypes(const TensorView& in,
                                                         const TensorView& out) {
  throw py::value_error(std::string("out: is ") + out.dtype->name + ", tensor is " +
                        in.dtype->name);
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_out(const char* mistake) {
  throw py::value_error(std::string("out: ") + mistake);
}

// The elements of one block of a buffer that consists of nranks blocks.
std::size_t block_count(const TensorView& view, std::size_t nranks) {
  if (view.count % (nranks * view.dtype->width) != 0) [[unlikely]]
    throw_blocks(view, nranks);
  return view.count / nranks;
}

// Two buffers may be the same where NCCL defines it (in place), and apart; nothing between.
void check_overlap(const TensorView& in, const TensorView& out, std::ptrdiff_t in_place_offset) {
  if (in.data + in.nbytes() <= out.data || out.data + out.nbytes() <= in.data) [[likely]]
    return;
  if (in.data - out.data != in_place_offset) [[unlikely]]
    throw_out("overlaps tensor in another way than in place");
}

// One call: what its methods have in common.
template <Kind K>
class Call {
  static constexpr Shape shape = shape_of<K>();

 public:
  // On this stream; nullptr: the one that the arguments say.
  Call(Communicator& communicator, const Arguments& arguments, const cudaStream_t* stream)
      : communicator_(communicator), arguments_(arguments), stream_(stream) {
    communicator.handle();  // a closed communicator is refused before its arguments are read
    if constexpr (shape.peer != nullptr)
      operation_.peer = rank_from_python(shape.peer, arguments.peer, communicator.nranks());
  }

  Operation operation() {
    if constexpr (K == Kind::kGather || K == Kind::kScatter)
      if (communicator_.rank() != operation_.peer) {
        operation_.kind = K;
        other_side();
        return operation_;
      }
    TensorView in;
    view_tensor(in, "tensor", arguments_.tensor, arguments_.count, arguments_.dtype);
    return operation(in);
  }

  // Of a tensor that was looked at before.
  Operation operation(const TensorView& in) {
    operation_.kind = K;
    check_placement(in, communicator_.library(), communicator_.device());
    if constexpr (shape.reduces)
      operation_.op = op_from_python(arguments_.op, *in.dtype, communicator_);
    if (arguments_.out)
      out_of_place(in, view("out", arguments_.out));
    else
      in_place(in);
    return operation_;
  }

 private:
  TensorView view(const char* name, PyObject* object) {
    TensorView view;
    view_tensor(view, name, object, arguments_.count, arguments_.dtype);
    check_placement(view, communicator_.library(), communicator_.device());
    return view;
  }

  void finish(const TensorView& owner, std::size_t count) {
    operation_.dtype = owner.dtype->nccl;
    operation_.count = count;
    operation_.stream =
        stream_ ? *stream_ : resolve_stream(arguments_.stream, owner, communicator_.library());
  }

  std::size_t nranks() const { return static_cast<std::size_t>(communicator_.nranks()); }

  // Where this rank's block (or the root's) begins in a buffer of all blocks.
  std::size_t block_offset(const TensorView& view, std::size_t count) const {
    return static_cast<std::size_t>(communicator_.rank()) * count * view.dtype->size() /
           view.dtype->width;
  }

  void out_of_place(const TensorView& in, const TensorView& out) {
    check_writable(out);
    if (in.dtype != out.dtype) [[unlikely]]
      throw_dtypes(in, out);
    std::size_t count = in.count;
    std::ptrdiff_t in_place_offset = 0;
    if constexpr (shape.send_blocks == 1 && shape.recv_blocks == 1) {
      if (out.count != in.count) throw_size(out, in.count, ", as many as tensor");
    } else if constexpr (shape.send_blocks == 1) {
      if (out.count != in.count * nranks())
        throw_size(out, in.count * nranks(), ", those of tensor from each rank");
      in_place_offset = static_cast<std::ptrdiff_t>(block_offset(in, count));
    } else if constexpr (shape.recv_blocks == 1) {
      count = out.count;
      if (in.count != out.count * nranks())
        throw_size(in, out.count * nranks(), ", those of out for each rank");
      in_place_offset = -static_cast<std::ptrdiff_t>(block_offset(in, count));
    } else {
      count = block_count(in, nranks());
      if (out.count != in.count) throw_size(out, in.count, ", as many as tensor");
      if (in.data == out.data && in.count) throw_out("NCCL has no all-to-all in place");
    }
    check_overlap(in, out, in_place_offset);
    operation_.sendbuff = in.data;
    operation_.recvbuff = out.data;
    finish(in, count);
  }

  void in_place(const TensorView& all) {
    if constexpr (K == Kind::kAllToAll)
      throw py::type_error(
          "all_to_all() misses the argument 'out': NCCL has no all-to-all in place");
    if constexpr (K != Kind::kSend) check_writable(all);
    operation_.sendbuff = all.data;
    operation_.recvbuff = all.data;
    if constexpr (shape.send_blocks == shape.recv_blocks) return finish(all, all.count);
    const std::size_t count = block_count(all, nranks());
    const std::size_t offset = block_offset(all, count);
    if constexpr (shape.recv_blocks == 0)
      operation_.sendbuff = all.data + offset;
    else
      operation_.recvbuff = all.data + offset;
    finish(all, count);
  }

  // A rank that is not the root of gather or scatter has one block and needs no buffer for all.
  void other_side() {
    PyObject* block = arguments_.tensor;
    const char* name = "tensor";
    if constexpr (K == Kind::kScatter) {
      if (arguments_.out) {
        block = arguments_.out;
        name = "out";
      }
    }
    const TensorView one = view(name, block);
    if constexpr (K == Kind::kScatter) check_writable(one);
    operation_.sendbuff = one.data;
    operation_.recvbuff = one.data;
    finish(one, one.count);
  }

  Communicator& communicator_;
  const Arguments& arguments_;
  const cudaStream_t* stream_;
  Operation operation_{};
};

// By value, so that an operation whose address nobody else has stays in registers.
[[gnu::noinline]] void add_to(Group& group, PyObject* self, Communicator& communicator,
                              const Operation operation, const Arguments a) {
  group.batch().add(communicator, operation, {self, a.tensor, a.out, a.stream, a.op});
}

// Issues a checked operation, or adds it to the thread's group. With a configuration its kind is
// another than K.
template <Kind K>
[[gnu::always_inline]] inline PyObject* perform(PyObject* self, Communicator& communicator,
                                                const Operation& operation, const Arguments& a) {
  if (Group* group = Group::active()) [[unlikely]] {
    add_to(*group, self, communicator, operation, a);
  } else {
    if (Graph::any_capture()) [[unlikely]]
      hold_in_capture(communicator.library(), operation.stream, {a.tensor, a.out, a.op});
    const GilReleased released;  // on CPUs the call lasts until the data has arrived
    if (a.config) [[unlikely]]
      communicator.issue(operation);
    else
      communicator.issue(K, operation);
    communicator.settle();
  }
  return Py_NewRef(Py_None);
}

// The usual call: of one tensor in place, with nothing else given, the tensor of the same type as
// the last one. What Call does is done here without a look aside: false wherever anything is not as
// it mostly is, mistakes included, and Call finds out.
template <Kind K>
[[gnu::always_inline]] inline bool read_plainly(Communicator& communicator, PyObject* const* args,
                                                Operation& operation) {
  static constexpr Shape shape = shape_of<K>();
  communicator.handle();
  int peer = 0;
  if constexpr (shape.peer != nullptr)
    peer = rank_from_python(shape.peer, args[1], communicator.nranks());
  const DLPackExchangeAPI* api = last_exchange.api;
  if (Py_TYPE(args[0]) != last_exchange.type || !api) [[unlikely]]
    return false;
  DLTensor tensor;
  if (api->dltensor_from_py_object_no_sync(args[0], &tensor) != 0) [[unlikely]] {
    PyErr_Clear();
    return false;
  }
  const Library& library = communicator.library();
  const DType* dtype = last_dtype.dtype;
  const std::int64_t elements = elements_in_a_row(tensor);
  if (!like_last_dtype(tensor) || elements <= 0 || !tensor.data ||
      !is_placed(tensor.device.device_type, tensor.device.device_id, library,
                 communicator.device()) ||
      library.version() < dtype->since || (shape.reduces && !dtype->reduces(ncclSum))) [[unlikely]]
    return false;
  char* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  cudaStream_t stream = nullptr;
  if (library.memory() != Memory::kHost) stream = current_stream(*api, tensor.device);
  operation = {K,
               dtype->nccl,
               ncclSum,
               peer,
               data,
               data,
               static_cast<std::size_t>(elements) * dtype->width,
               in_capture(library, stream)};
  return true;
}

template <Kind K>
PyObject* method(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Shape shape = shape_of<K>();
  return guarded([&]() __attribute__((always_inline)) {
    auto& communicator = unwrap<Communicator>(self);
    if constexpr (shape.send_blocks == 1 && shape.recv_blocks == 1)
      if (nargs == 1 + (shape.peer != nullptr) && !kwnames) [[likely]] {
        Operation operation;
        Arguments arguments;
        arguments.tensor = args[0];
        if (read_plainly<K>(communicator, args, operation)) [[likely]]
          return perform<K>(self, communicator, operation, arguments);
      }
    const Arguments arguments = parse<K>(args, nargs, kwnames);
    Operation operation = Call<K>(communicator, arguments, nullptr).operation();
    if (arguments.config) [[unlikely]]
      configure(operation, communicator, arguments.config);
    return perform<K>(self, communicator, operation, arguments);
  });
}

}  // namespace

template <OperationKind K>
Operation checked(Communicator& communicator, const Arguments& arguments, const TensorView& tensor,
                  const cudaStream_t* stream) {
  return Call<K>(communicator, arguments, stream).operation(tensor);
}

#define CHECKED(kind)                                                                        \
  template Operation checked<Kind::kind>(Communicator&, const Arguments&, const TensorView&, \
                                         const cudaStream_t*);
CHECKED(kAllReduce)
CHECKED(kBroadcast)
CHECKED(kReduce)
CHECKED(kAllGather)
CHECKED(kReduceScatter)
CHECKED(kSend)
CHECKED(kRecv)
#undef CHECKED

void bind_collectives(py::module_&) {
  const py::type communicator_type = py::type::of<Communicator>();
  static const std::string common = collective_docs::kCommon;
#define METHOD(kind)                                                                 \
  {                                                                                  \
    static const std::string doc =                                                   \
        std::string(collective_docs::kind) +                                         \
        (shape_of<Kind::kind>().takes_out ? collective_docs::kConfig : "") + common; \
    static PyMethodDef definition =                                                  \
        fast_method(shape_of<Kind::kind>().name, &method<Kind::kind>, doc.c_str());  \
    add_method(communicator_type, definition);                                       \
  }
  METHOD(kAllReduce)
  METHOD(kBroadcast)
  METHOD(kReduce)
  METHOD(kAllGather)
  METHOD(kReduceScatter)
  METHOD(kAllToAll)
  METHOD(kGather)
  METHOD(kScatter)
  METHOD(kSend)
  METHOD(kRecv)
#undef METHOD
}

}  // namespace pynccl::python
