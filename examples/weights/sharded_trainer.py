"""Two trainers with half of each tensor send to a full engine and to one that wants a slice.

Run: python examples/weights/sharded_trainer.py

Each trainer sends the rows that it holds, as FSDP2 shards them: nothing is gathered. Engine 0 wants
everything. Engine 1 is half of a tensor-parallel pair and gets the columns that it needs, in
bfloat16. (A torch DTensor is sent from its local shard in the same way, without Shard.)

Prints:
engine 0: weight (6, 4) equal: True
engine 1: weight (6, 2) equal: True
"""

import threading

import torch

from pynccl.weights import Shard, WeightReceiver, WeightSender

ADDRESS = "127.0.0.1:29612"
ROWS = ((0, 4), (4, 6))  # of the trainers
WEIGHT = torch.arange(24.0).view(6, 4)


def train(rank: int) -> None:
    first, last = ROWS[rank]
    shard = Shard(WEIGHT[first:last].clone(), shape=(6, 4), start=(first, 0))
    with WeightSender(ADDRESS, rank=rank, senders=2, receivers=2, timeout=30) as sender:
        sender.send({"weight": shard})


def serve(number: int) -> None:
    wanted = torch.zeros(6, 4)
    into: dict[str, object] = {"weight": wanted}
    expected = WEIGHT
    if number == 1:
        wanted = torch.zeros(6, 2, dtype=torch.bfloat16)
        into = {"weight": Shard(wanted, shape=(6, 4), start=(0, 2))}
        expected = WEIGHT[:, 2:].to(torch.bfloat16)
    with WeightReceiver(ADDRESS, into, timeout=30) as receiver:
        receiver.receive()
    results[number] = f"weight {tuple(wanted.shape)} equal: {torch.equal(wanted, expected)}"


results: dict[int, str] = {}


def main() -> None:
    # Threads in this example; processes and machines in practice.
    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    threads += [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in sorted(results.items()):
        print(f"engine {number}: {text}")


if __name__ == "__main__":
    main()
