"""Dispatch and combine of a mixture of experts inside a kernel compiled by Numba: uneven puts.

Run: python examples/device/numba_moe.py

Each rank has tokens and one expert. The gate sends each token to one expert, so the number of
tokens differs between pairs of ranks. The kernel puts each token into the memory of its expert's
rank, signals with the number of tokens, waits for those of all ranks, applies the expert, and puts
the results back. Only tokens are transferred: 2 N bytes, where N is the size of the tokens for
other ranks. With send and recv, the numbers must be exchanged first.

Prints, with other times:
rank 0 of 2: 256 tokens of 32 features are right; kernel 66 us, send and recv 464 us
"""

import numba
import numpy as np
from ranks import World, run

from pynccl import nccl
from pynccl.device import numba as peers

TOKENS, FEATURES = 256, 32  # of each rank


@numba.njit(nogil=True)
def apply_expert(expert, tokens, results):
    """Compute results = tokens * expert, with a bias; any function of one token."""
    for i in range(tokens.shape[0]):
        for j in range(tokens.shape[1]):
            results[i, j] = tokens[i, j] * (expert + 1) + expert


@numba.njit(nogil=True)
def dispatch_and_combine(tokens, gate, arrived, results, counts, signals, rank, nranks, call):
    """The results of this rank's tokens, in results[rank].

    arrived, results: addresses by rank of (ranks, TOKENS, FEATURES), indexed by the rank of the
    expert's memory and of the tokens. counts: addresses of one int64 for each source. Words: one
    for the tokens of each source, one for the results of each expert, and those of a barrier.
    """
    rows, features = tokens.shape
    size = rows * features
    order = np.argsort(gate, kind="mergesort")  # the tokens by expert
    number = np.bincount(gate, minlength=nranks)
    packed = tokens[order]
    begin = 0
    for expert in range(nranks):
        part = packed[begin : begin + number[expert]]
        peers.put(arrived, expert, rank * size, part)
        peers.put(counts, expert, rank, number[expert : expert + 1])
        peers.signal(signals, expert, rank)
        begin += number[expert]

    mine = peers.array(peers.peer(arrived, rank), (nranks, rows, features), np.float32)
    many = peers.array(peers.peer(counts, rank), (nranks,), np.int64)
    computed = np.empty_like(tokens)
    for step in range(nranks):
        source = (rank + step) % nranks
        peers.wait(signals, rank, call, source)
        part = computed[: many[source]]
        apply_expert(rank, mine[source, : many[source]], part)
        peers.put(results, source, rank * size, part)
        peers.signal(signals, source, nranks + rank)

    back = peers.array(peers.peer(results, rank), (nranks, rows, features), np.float32)
    combined = np.empty_like(tokens)
    begin = 0
    for expert in range(nranks):
        peers.wait(signals, rank, call, nranks + expert)
        for i in range(number[expert]):
            combined[order[begin + i]] = back[expert, i]
        begin += number[expert]
    # A rank that is done must not overwrite data that another one still reads.
    peers.barrier(signals, rank, nranks, 0, 2 * nranks)
    return combined


def with_send_and_recv(comm: nccl.Communicator, tokens: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """The same with all_to_all for the numbers, and uneven sends."""
    order = np.argsort(gate, kind="stable")
    number = np.bincount(gate, minlength=comm.nranks)
    many = np.empty_like(number)
    comm.all_to_all(number, out=many)
    packed = tokens[order]
    arrived = np.empty((many.sum(), FEATURES), np.float32)
    exchange(comm, np.split(packed, number.cumsum()), np.split(arrived, many.cumsum()))
    computed = np.empty_like(arrived)
    apply_expert(comm.rank, arrived, computed)
    exchange(comm, np.split(computed, many.cumsum()), np.split(packed, number.cumsum()))
    combined = np.empty_like(tokens)
    combined[order] = packed
    return combined


def exchange(comm: nccl.Communicator, out: list[np.ndarray], into: list[np.ndarray]) -> None:
    """Exchange a part with each rank."""
    with nccl.group():
        for peer in range(comm.nranks):
            comm.send(out[peer], peer)
            comm.recv(into[peer], peer)


def layer(world: World) -> str:
    comm = world.comm
    shape = [comm.nranks, TOKENS, FEATURES]
    arrived, results = (world.symmetric(shape, "float32") for _ in range(2))
    counts = world.symmetric([comm.nranks], "int64")
    words = 2 * comm.nranks + peers.barrier_words(comm.nranks)
    signals = world.symmetric([words], "int64")
    memories = [m.pointers.numpy() for m in (arrived, results, counts, signals)]
    random = np.random.default_rng(comm.rank)
    tokens = random.standard_normal((TOKENS, FEATURES), np.float32)
    # One expert is chosen often, and another one never by this rank.
    gate = np.minimum(random.geometric(0.6, TOKENS), comm.nranks) - 1
    gate[gate == (comm.rank + 1) % comm.nranks] = comm.rank
    calls = 0
    combined: list[np.ndarray] = [tokens, tokens]

    def kernel() -> None:
        nonlocal calls
        calls += 1
        combined[0] = dispatch_and_combine(tokens, gate, *memories, comm.rank, comm.nranks, calls)

    def library() -> None:
        combined[1] = with_send_and_recv(comm, tokens, gate)

    times = [world.median(call) for call in (kernel, library)]
    expert = gate[:, None].astype(np.float32)
    np.testing.assert_array_equal(combined[0], combined[1])
    np.testing.assert_allclose(combined[0], tokens * (expert + 1) + expert, atol=1e-5)
    return (
        f"rank 0 of {comm.nranks}: {TOKENS} tokens of {FEATURES} features are right; "
        f"kernel {times[0]:.0f} us, send and recv {times[1]:.0f} us"
    )


if __name__ == "__main__":
    run(layer, 2, "host")
