// The docstrings of the collectives and messages, each with the signature for inspect.signature().
#pragma once

namespace pynccl::python::collective_docs {

// The end of each docstring.
inline constexpr char kCommon[] =
    R"(    stream: a stream, an object with __cuda_stream__, or a cudaStream_t as an integer; None is
        the current stream of the tensor's framework. On CPUs None is the calling thread: the call
        returns when the operation is done.
    count, dtype: the number of elements and their type, if the buffers are integer addresses.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed; nothing was issued.
    NcclError: NCCL failed.
    NcclTimeoutError: the operation, or an earlier one of the communicator, took longer than its
        time limit: see Config.timeout.
)";

// For the operations that take a CollConfig: all collectives.
inline constexpr char kConfig[] =
    R"(    config: a CollConfig, the same on every rank; NCCL 2.31.
)";

inline constexpr char kAllReduce[] =
    "all_reduce($self, tensor, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Reduce the tensors of all ranks element by element, on every rank (ncclAllReduce).

Args:
    tensor: this rank's input, contiguous, of any shape and any dtype of NCCL; also the result if
        out is None.
    op: a RedOp, a str ("sum", "avg", "max", "min", "prod") or an operator of torch's ReduceOp; None
        is RedOp.SUM.
    out: the result, with the same number of elements and dtype as tensor.
)";

inline constexpr char kBroadcast[] =
    "broadcast($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Copy the root's tensor to every rank (ncclBroadcast).

Args:
    tensor: the source on the root; on the other ranks the destination if out is None.
    root: the rank of the source.
    out: the destination, with the same number of elements and dtype as tensor.
)";

inline constexpr char kReduce[] =
    "reduce($self, tensor, root, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Reduce the tensors of all ranks element by element, on the root (ncclReduce).

Args:
    tensor: this rank's input, of any shape; on the root also the result if out is None.
    root: the rank that gets the result.
    op: a RedOp, a str ("sum", "avg", "max", "min", "prod") or an operator of torch's ReduceOp; None
        is RedOp.SUM.
    out: the result, with the same number of elements and dtype as tensor; used on the root only.
)";

inline constexpr char kAllGather[] =
    "all_gather($self, tensor, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Gather the tensors of all ranks in the order of ranks, on every rank (ncclAllGather).

Args:
    tensor: this rank's block. If out is None: nranks blocks, this rank's block at its place.
    out: nranks times the elements of tensor, of the same dtype.
)";

inline constexpr char kReduceScatter[] =
    "reduce_scatter($self, tensor, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Reduce the tensors of all ranks element by element; rank i gets block i (ncclReduceScatter).

Args:
    tensor: nranks blocks. If out is None, this rank's block of it receives the result.
    op: a RedOp, a str ("sum", "avg", "max", "min", "prod") or an operator of torch's ReduceOp; None
        is RedOp.SUM.
    out: one block, of the same dtype.
)";

inline constexpr char kAllToAll[] =
    "all_to_all($self, tensor, *, out, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Send block j of the tensor to rank j and receive block i of out from rank i (ncclAlltoAll).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: nranks blocks to send.
    out: nranks blocks to receive, of the same dtype; it must not overlap tensor, since NCCL has no
        all-to-all in place.
)";

inline constexpr char kGather[] =
    "gather($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Gather the tensors of all ranks in the order of ranks, on the root (ncclGather).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: this rank's block. On the root if out is None: nranks blocks, its block at its place.
    root: the rank that gets the result.
    out: nranks times the elements of tensor, of the same dtype; used on the root only.
)";

inline constexpr char kScatter[] =
    "scatter($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Send block i of the root's tensor to rank i (ncclScatter).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: nranks blocks on the root; on the other ranks the destination if out is None,
        otherwise unused.
    root: the rank of the source.
    out: one block, of the same dtype; None on the root leaves its block in place.
)";

inline constexpr char kSend[] =
    "send($self, tensor, peer, *, stream=None, count=None, "
    "dtype=None)\n--\n\n"
    R"(Send a tensor to a peer, which must receive as many elements of the same dtype (ncclSend).

Args:
    tensor: the data, contiguous, of any shape.
    peer: the rank that receives.
)";

inline constexpr char kRecv[] =
    "recv($self, tensor, peer, *, stream=None, count=None, "
    "dtype=None)\n--\n\n"
    R"(Receive a tensor from a peer, which must send as many elements of the same dtype (ncclRecv).

Args:
    tensor: the destination, contiguous, of any shape.
    peer: the rank that sends.
)";

}  // namespace pynccl::python::collective_docs
