// The docstrings of the collectives, each with the signature that inspect.signature() reads.
#pragma once

namespace pynccl::python::collective_docs {

// What all of them end with.
inline constexpr char kCommon[] =
    R"(    stream: a stream, an object with __cuda_stream__, or a cudaStream_t as an integer; None
        for the current stream of the tensor's framework. On CPUs None is the calling thread
        itself, which returns when the operation is done.
    count, dtype: the elements and their type, where the buffers are integer addresses.

Raises:
    TypeError, ValueError: a wrong argument; nothing was sent.
    NcclError: NCCL failed.
)";

// Of those that NCCL can configure one by one: all but the messages.
inline constexpr char kConfig[] =
    R"(    config: a CollConfig, the same on every rank; NCCL 2.31 or newer.
)";

inline constexpr char kAllReduce[] =
    "all_reduce($self, tensor, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Combine the tensors of all ranks element by element, on every rank (ncclAllReduce).

Args:
    tensor: this rank's contribution, any shape; also the result where out is None.
    op: a RedOp; None is RedOp.SUM.
    out: the result, as many elements of the same dtype.
)";

inline constexpr char kBroadcast[] =
    "broadcast($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Copy the root's tensor to every rank (ncclBroadcast).

Args:
    tensor: the source on the root; on the others the destination where out is None.
    root: the rank that has the data.
    out: the destination, as many elements of the same dtype.
)";

inline constexpr char kReduce[] =
    "reduce($self, tensor, root, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Combine the tensors of all ranks element by element; the root gets the result (ncclReduce).

Args:
    tensor: this rank's contribution, any shape; on the root also the result where out is None.
    root: the rank that gets the result.
    op: a RedOp; None is RedOp.SUM.
    out: the result, as many elements of the same dtype; used on the root only.
)";

inline constexpr char kAllGather[] =
    "all_gather($self, tensor, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Collect the tensors of all ranks, in the order of ranks, on every rank (ncclAllGather).

Args:
    tensor: this rank's block. Where out is None: nranks blocks, this rank's at its place.
    out: nranks times the elements of tensor.
)";

inline constexpr char kReduceScatter[] =
    "reduce_scatter($self, tensor, op=None, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Combine the tensors of all ranks element by element; rank i gets block i (ncclReduceScatter).

Args:
    tensor: nranks blocks. Where out is None, this rank's block of it receives the result.
    op: a RedOp; None is RedOp.SUM.
    out: one block.
)";

inline constexpr char kAllToAll[] =
    "all_to_all($self, tensor, *, out, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Send block j of the tensor to rank j and receive block i of out from rank i (ncclAlltoAll).

Before NCCL 2.28 a group of sends and receives.

Args:
    tensor: nranks blocks to send.
    out: nranks blocks to receive, apart from tensor: NCCL has no all-to-all in place.
)";

inline constexpr char kGather[] =
    "gather($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Collect the tensors of all ranks, in the order of ranks, on the root (ncclGather).

Before NCCL 2.28 a group of sends and receives.

Args:
    tensor: this rank's block. On the root where out is None: nranks blocks, its own at its place.
    root: the rank that collects.
    out: nranks times the elements of tensor; used on the root only.
)";

inline constexpr char kScatter[] =
    "scatter($self, tensor, root, *, out=None, stream=None, count=None, "
    "dtype=None, config=None)\n--\n\n"
    R"(Send block i of the root's tensor to rank i (ncclScatter).

Before NCCL 2.28 a group of sends and receives.

Args:
    tensor: on the root nranks blocks; on the others the destination where out is None, else unused.
    root: the rank that has the blocks.
    out: one block; on the root None leaves its block where it is.
)";

inline constexpr char kSend[] =
    "send($self, tensor, peer, *, stream=None, count=None, "
    "dtype=None)\n--\n\n"
    R"(Send a tensor to one rank, which must receive as many elements of its dtype (ncclSend).

Args:
    tensor: what to send, any shape.
    peer: the rank that receives.
)";

inline constexpr char kRecv[] =
    "recv($self, tensor, peer, *, stream=None, count=None, "
    "dtype=None)\n--\n\n"
    R"(Receive a tensor from one rank, which must send as many elements of its dtype (ncclRecv).

Args:
    tensor: where to receive, any shape.
    peer: the rank that sends.
)";

}  // namespace pynccl::python::collective_docs
