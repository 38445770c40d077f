// The docstrings of the one-sided operations, each with the signature for inspect.signature().
#pragma once

namespace pynccl::python::one_sided_docs {

inline constexpr char kPutSignal[] =
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

inline constexpr char kSignal[] =
    "signal($self, peer, *, signal=0, context=0, stream=None)\n--\n\n"
    R"(Signal a peer without data (ncclSignal, NCCL 2.29).

When its wait_signal() completes, the peer sees the data of all earlier puts from this rank in the
same context. A window must be registered first, unless Config.rma_eager_init is 1.

Args:
    peer: the rank to signal.
    signal: the index of the signal, from 0 to Config.num_rma_sig - 1.
    context: the index of the context, from 0 to Config.num_rma_ctx - 1.
    stream: as for put_signal(). Required on GPUs outside capture(), since there is no tensor to
        determine the current stream.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed; nothing was issued.
    MissingFunctionError: the library is older than NCCL 2.29.
    RuntimeError: the CUDA driver is older than 12.5.
    NcclError: NCCL failed.
)";

inline constexpr char kWaitSignal[] =
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
    stream: the stream that waits, as for put_signal(). Required on GPUs outside capture(), since
        there is no tensor to determine the current stream.

Raises:
    TypeError, ValueError: an invalid argument, or the communicator is closed; nothing was issued.
    MissingFunctionError: the library is older than NCCL 2.29.
    RuntimeError: the CUDA driver is older than 12.5.
    NcclError: a peer died, or NCCL failed.
)";

}  // namespace pynccl::python::one_sided_docs
