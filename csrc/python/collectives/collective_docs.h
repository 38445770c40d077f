// The docstrings of the collectives, send and recv, each with a signature for inspect.signature().
#pragma once

namespace pynccl::python::collective_docs {

// The end of each docstring.
inline constexpr char kCommon[] =
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

// For the operations that take a CollConfig: all collectives.
inline constexpr char kConfig[] =
    R"(    config: a CollConfig, the same on every rank. Requires NCCL 2.31.
)";

inline constexpr char kAllReduce[] =
    "all_reduce($self, tensor, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Reduce the tensors of all ranks elementwise; every rank gets the result (ncclAllReduce).

Args:
    tensor: the input, contiguous, of any shape and any dtype that NCCL supports. If out is None,
        it also receives the result.
    op: a RedOp, a str ("sum", "avg", "max", "min", "prod") or a value of torch's ReduceOp. None is
        RedOp.SUM.
    out: receives the result; the same number of elements and dtype as tensor.
)";

inline constexpr char kBroadcast[] =
    "broadcast($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Copy the root's tensor to every rank (ncclBroadcast).

Args:
    tensor: the source on the root. On the other ranks, the destination if out is None.
    root: the rank of the source.
    out: the destination; the same number of elements and dtype as tensor.
)";

inline constexpr char kReduce[] =
    "reduce($self, tensor, root, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Reduce the tensors of all ranks elementwise; the root gets the result (ncclReduce).

Args:
    tensor: the input, of any shape. On the root, it also receives the result if out is None.
    root: the rank that receives the result.
    op: a RedOp, a str ("sum", "avg", "max", "min", "prod") or a value of torch's ReduceOp. None is
        RedOp.SUM.
    out: receives the result on the root; the same number of elements and dtype as tensor. Not
        written on the other ranks.
)";

inline constexpr char kAllGather[] =
    "all_gather($self, tensor, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Gather the tensors of all ranks, in rank order, on every rank (ncclAllGather).

Args:
    tensor: this rank's block. If out is None, a buffer of nranks blocks with this rank's block in
        position.
    out: receives the blocks; nranks times the elements of tensor, the same dtype.
)";

inline constexpr char kReduceScatter[] =
    "reduce_scatter($self, tensor, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Reduce the tensors of all ranks elementwise; rank i gets block i (ncclReduceScatter).

Args:
    tensor: nranks blocks. If out is None, this rank's block receives the result.
    op: a RedOp, a str ("sum", "avg", "max", "min", "prod") or a value of torch's ReduceOp. None is
        RedOp.SUM.
    out: receives this rank's block; the same dtype as tensor.
)";

inline constexpr char kAllToAll[] =
    "all_to_all($self, tensor, *, out, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Send block i of tensor to rank i and receive block i of out from rank i (ncclAlltoAll).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: nranks blocks to send.
    out: receives nranks blocks; the same dtype as tensor. It must not overlap tensor, since NCCL
        does not support all-to-all in place.
)";

inline constexpr char kGather[] =
    "gather($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Gather the tensors of all ranks, in rank order, on the root (ncclGather).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: this rank's block. On the root if out is None, a buffer of nranks blocks with the root's
        block in position.
    root: the rank that receives the result.
    out: receives the blocks on the root; nranks times the elements of tensor, the same dtype.
        Unused on the other ranks.
)";

inline constexpr char kScatter[] =
    "scatter($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Send block i of the root's tensor to rank i (ncclScatter).

Before NCCL 2.28 it is a group of sends and receives.

Args:
    tensor: nranks blocks on the root. On the other ranks, the destination if out is None, otherwise
        unused.
    root: the rank of the source.
    out: receives one block; the same dtype as tensor. If None on the root, its block stays in
        place.
)";

inline constexpr char kSend[] =
    "send($self, tensor, peer, *, stream=None, count=None, "
    "dtype=None)\n--\n\n"
    R"(Send a tensor to a peer (ncclSend).

The peer must call recv() with the same number of elements and dtype.

Args:
    tensor: the data, contiguous, of any shape.
    peer: the receiving rank.
)";

inline constexpr char kRecv[] =
    "recv($self, tensor, peer, *, stream=None, count=None, "
    "dtype=None)\n--\n\n"
    R"(Receive a tensor from a peer (ncclRecv).

The peer must call send() with the same number of elements and dtype.

Args:
    tensor: the destination, contiguous, of any shape.
    peer: the sending rank.
)";

}  // namespace pynccl::python::collective_docs
