// The docstrings of the one-sided operations, each with the signature that inspect.signature()
// reads.
#pragma once

namespace pynccl::python::one_sided_docs {

inline constexpr char kPutSignal[] =
    "put_signal($self, tensor, peer, window, offset=0, *, signal=0, context=0, stream=None, "
    "count=None, dtype=None)\n--\n\n"
    R"(Write a tensor into a peer's window and then give the peer a signal (ncclPutSignal).

The peer takes no part; it waits for the signal with wait_signal(), after which it sees the data, and
that of all earlier puts from this rank to it in the same context. In NCCL since 2.29.

Args:
    tensor: what to write, any shape; within a buffer that is registered as a window itself.
    peer: the rank to write to.
    window: the Window that the ranks have registered together.
    offset: where the data goes, in bytes from the beginning of the peer's part of the window.
    signal: which signal, from 0 to Config.num_rma_sig - 1.
    context: in which context, from 0 to Config.num_rma_ctx - 1.
    stream: a stream, an object with __cuda_stream__, or a cudaStream_t as an integer; None for the
        current stream of the tensor's framework, on CPUs the calling thread itself.
    count, dtype: the elements and their type, where the tensor is an integer address.

Raises:
    TypeError, ValueError: a wrong argument, a closed or another communicator's window; nothing was
        sent.
    MissingFunctionError: the loaded NCCL is older than the function.
    NcclError: NCCL failed, or it does not fit into the peer's window.
)";

inline constexpr char kSignal[] =
    "signal($self, peer, *, signal=0, context=0, stream=None)\n--\n\n"
    R"(Give a peer a signal without data (ncclSignal).

When the peer has it, it has what this rank has put and signalled to it before in that context. In
NCCL since 2.29; a window must have been registered before, unless Config.rma_eager_init is 1.

Args:
    peer: the rank that gets the signal.
    signal: which signal, from 0 to Config.num_rma_sig - 1.
    context: in which context, from 0 to Config.num_rma_ctx - 1.
    stream: as for put_signal(); over GPUs it must be given where nothing is captured, since there
        is no tensor.

Raises:
    TypeError, ValueError: a wrong argument; nothing was sent.
    MissingFunctionError: the loaded NCCL is older than the function.
    NcclError: NCCL failed.
)";

inline constexpr char kWaitSignal[] =
    "wait_signal($self, peers, count=1, *, signal=0, context=0, stream=None)\n--\n\n"
    R"(Wait until peers have given signals, and take these (ncclWaitSignal).

    comm.wait_signal(left)                # one signal from one rank
    comm.wait_signal([left, right], 2)    # two from each of two ranks
    comm.wait_signal({left: 1, right: 3})
    comm.wait_signal([raw.ncclWaitSignalDesc_t(opCnt=1, peer=left, sigIdx=2)])

Afterwards this rank sees the data of the puts that gave them. In NCCL since 2.29.

Args:
    peers: a rank; ranks; a dict of ranks and how many signals from each; or descriptors, each with a
        signal and a context of its own. With no ranks there is nothing to wait for.
    count: how many signals from each rank.
    signal: which signal, from 0 to Config.num_rma_sig - 1.
    context: in which context, from 0 to Config.num_rma_ctx - 1.
    stream: what waits; as for put_signal(); over GPUs it must be given where nothing is captured,
        since there is no tensor.

Raises:
    TypeError, ValueError: a wrong argument; nothing was sent.
    MissingFunctionError: the loaded NCCL is older than the function.
    NcclError: NCCL failed, or one of the peers is gone.
)";

}  // namespace pynccl::python::one_sided_docs
