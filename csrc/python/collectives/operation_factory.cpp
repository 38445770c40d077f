#include "python/collectives/operation_factory.h"

#include "comm/overlap.h"
#include "python/comm/communicator.h"
#include "python/convert/red_op.h"

namespace pynccl::python {
namespace {

using Kind = OperationKind;

// Cold and not inlined, so that the errors take neither code space nor registers of the hot path.
[[noreturn, gnu::cold, gnu::noinline]] void throw_size(const TensorView& view, std::size_t needed,
                                                       const char* why) {
  throw_value_error(view.argument, "has ", view.count / view.dtype->width, " elements, must have ",
                    needed / view.dtype->width, why);
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_blocks(const TensorView& view,
                                                         std::size_t nranks) {
  throw_value_error(view.argument, "has ", view.count / view.dtype->width,
                    " elements, must be a multiple of the ", nranks, " ranks");
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_dtypes(const TensorView& in,
                                                         const TensorView& out) {
  throw_value_error("out", "is ", out.dtype->name, ", tensor is ", in.dtype->name);
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_overlap(bool all_to_all_in_place) {
  throw OverlapError(
      all_to_all_in_place
          ? "out: NCCL has no all-to-all in place"
          : "out: overlaps tensor; only the in-place position or separate memory is allowed");
}

// The number of elements per block in a buffer of nranks blocks.
std::size_t block_count(const TensorView& view, std::size_t nranks) {
  if (view.count % (nranks * view.dtype->width) != 0) [[unlikely]]
    throw_blocks(view, nranks);
  return view.count / nranks;
}

// Checks the arguments of one call and builds its operation.
template <Kind K>
class CheckedCall {
  static constexpr MethodTraits traits = method_traits<K>();

 public:
  // stream overrides the stream of the arguments; nullptr uses theirs.
  CheckedCall(Communicator& communicator, const OperationArguments& arguments,
              const cudaStream_t* stream)
      : communicator_(communicator), arguments_(arguments), stream_(stream) {
    communicator.handle();  // a closed communicator is refused before its arguments are read
    if constexpr (traits.takes_rank())
      root_or_peer_ =
          rank_from_python(traits.root_or_peer, arguments.root_or_peer, communicator.nranks());
  }

  Operation operation() {
    if constexpr (K == Kind::kGather || K == Kind::kScatter)
      if (communicator_.rank() != root_or_peer_) return not_root();
    TensorView in;
    view_tensor(in, *arguments_.owners, "tensor", arguments_.tensor, arguments_.count,
                arguments_.dtype);
    return operation(in);
  }

  // For a tensor that has been read already.
  Operation operation(TensorView& in) {
    check_placement(in, communicator_.library(), communicator_.device());
    if constexpr (traits.reduces) op_ = op_from_python(arguments_.op, *in.dtype, communicator_);
    if (arguments_.out) return out_of_place(in, view("out", arguments_.out));
    return in_place(in);
  }

 private:
  TensorView view(const char* name, PyObject* object) {
    TensorView view;
    view_tensor(view, *arguments_.owners, name, object, arguments_.count, arguments_.dtype);
    check_placement(view, communicator_.library(), communicator_.device());
    return view;
  }

  Operation build(const TensorView& owner, const void* sendbuff, void* recvbuff,
                  std::size_t count) {
    return build_operation<K>(
        *owner.dtype, op_, root_or_peer_, sendbuff, recvbuff, count,
        stream_ ? *stream_ : resolve_stream(arguments_.stream, owner, communicator_.library()));
  }

  std::size_t nranks() const { return static_cast<std::size_t>(communicator_.nranks()); }

  // The offset in bytes of this rank's block in a buffer of all blocks.
  std::size_t block_offset(const TensorView& view, std::size_t count) const {
    return static_cast<std::size_t>(communicator_.rank()) * count * view.dtype->size() /
           view.dtype->width;
  }

  Operation out_of_place(const TensorView& in, const TensorView& out) {
    check_writable(out);
    if (in.dtype != out.dtype) [[unlikely]]
      throw_dtypes(in, out);
    std::size_t count = in.count;
    if constexpr (traits.one_block()) {
      if (out.count != in.count) throw_size(out, in.count, ", as many as tensor");
    } else if constexpr (traits.send_blocks == 1) {
      if (out.count != in.count * nranks())
        throw_size(out, in.count * nranks(), ", those of tensor from each rank");
    } else if constexpr (traits.recv_blocks == 1) {
      count = out.count;
      if (in.count != out.count * nranks())
        throw_size(in, out.count * nranks(), ", those of out for each rank");
    } else {
      count = block_count(in, nranks());
      if (out.count != in.count) throw_size(out, in.count, ", as many as tensor");
    }
    // Checked on every rank, even if NCCL does not use one of the buffers on this rank.
    const OperationMemory memory = memory_of(
        static_cast<int>(K), in.data, out.data, count * in.dtype->size() / in.dtype->width,
        root_or_peer_, communicator_.rank(), communicator_.nranks());
    if (!memory.is_defined()) [[unlikely]]
      throw_overlap(in.data == out.data && K == Kind::kAllToAll);
    return build(in, in.data, out.data, count);
  }

  Operation in_place(const TensorView& all) {
    if constexpr (K == Kind::kAllToAll)
      throw py::type_error(
          "all_to_all() missing required argument 'out': NCCL has no all-to-all in place");
    if constexpr (K != Kind::kSend) check_writable(all);
    if constexpr (traits.send_blocks == traits.recv_blocks)
      return build(all, all.data, all.data, all.count);
    const std::size_t count = block_count(all, nranks());
    char* block = all.data + block_offset(all, count);
    if constexpr (traits.recv_blocks == 0)
      return build(all, block, all.data, count);
    else
      return build(all, all.data, block, count);
  }

  // gather or scatter on a rank other than the root, which needs only a buffer of one block.
  Operation not_root() {
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
    return build(one, one.data, one.data, one.count);
  }

  Communicator& communicator_;
  const OperationArguments& arguments_;
  const cudaStream_t* stream_;
  ncclRedOp_t op_ = ncclSum;
  int root_or_peer_ = 0;
};

}  // namespace

template <Kind K>
Operation make_operation(Communicator& communicator, const OperationArguments& arguments) {
  Operation operation = CheckedCall<K>(communicator, arguments, nullptr).operation();
  if (arguments.config) [[unlikely]]
    configure(operation, communicator, arguments.config);
  return operation;
}

template <Kind K>
void make_operation(Communicator& communicator, const OperationArguments& arguments,
                    TensorView& tensor, const cudaStream_t* stream, Operation& operation) {
  operation = CheckedCall<K>(communicator, arguments, stream).operation(tensor);
}

#define OPERATION(name, ...)                                                                  \
  template Operation make_operation<Kind::k##name>(Communicator&, const OperationArguments&); \
  template void make_operation<Kind::k##name>(Communicator&, const OperationArguments&,       \
                                              TensorView&, const cudaStream_t*, Operation&);
#define ONE_SIDED(name, method)
#include "comm/operations.inc"

}  // namespace pynccl::python
