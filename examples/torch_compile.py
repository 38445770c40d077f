"""A layer distributed over the ranks, compiled with its collective in one graph, and trained.

Run: torchrun --nproc-per-node 2 examples/torch_compile.py

Each rank has a share of the hidden units of a two-layer network: a block of columns of the first
weight and of rows of the second. The ranks compute terms of a sum, so one all_reduce of the output,
batch x features elements, completes the layer; its gradient is another all_reduce.
pynccl.ops.all_reduce is a torch operator: torch.compile includes it in its graph instead of
breaking there (fullgraph=True would raise), and autograd knows its gradient. Every rank computes
the same loss, so each takes its share of it.

Prints:
rank 0 of 2: one graph, loss and gradients are those of the whole layer
rank 1 of 2: one graph, loss and gradients are those of the whole layer
"""

import os

import torch

import pynccl as dist
from pynccl import ops
from pynccl.libraries import default_provider

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

BATCH, FEATURES, HIDDEN = 8, 16, 64


@torch.compile(fullgraph=True)
def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return ops.all_reduce(torch.relu(x @ up) @ down)


def whole(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss and gradients on a single rank."""
    up, down = up.clone().requires_grad_(), down.clone().requires_grad_()
    loss = (torch.relu(x @ up) @ down).square().mean()
    of_up, of_down = torch.autograd.grad(loss, (up, down))
    return loss.detach(), of_up, of_down


def main() -> None:
    provider = default_provider()
    dist.init_process_group("nccl" if provider == "cuda" else "host")
    rank, nranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if provider == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    generator = torch.Generator().manual_seed(0)  # the same weights on every rank
    x = torch.randn(BATCH, FEATURES, generator=generator).to(device)
    up = torch.randn(FEATURES, HIDDEN, generator=generator).to(device)
    down = torch.randn(HIDDEN, FEATURES, generator=generator).to(device)
    loss_of_all, grad_up, grad_down = whole(x, up, down)

    own_up = up.chunk(nranks, dim=1)[rank].clone().requires_grad_()
    own_down = down.chunk(nranks, dim=0)[rank].clone().requires_grad_()
    loss = layer(x, own_up, own_down).square().mean()
    (loss / nranks).backward()

    torch.testing.assert_close(loss.detach(), loss_of_all)
    torch.testing.assert_close(own_up.grad, grad_up.chunk(nranks, dim=1)[rank])
    torch.testing.assert_close(own_down.grad, grad_down.chunk(nranks, dim=0)[rank])
    text = "one graph, loss and gradients are those of the whole layer"
    # A single write for the whole line: the ranks share the terminal.
    print(f"rank {rank} of {nranks}: {text}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
