"""Puts the caching allocator into many states, and prints PyTorch's own record of each: `torch.cuda.memory._snapshot()`.

    late_books.py [--gpus 2] [--training]

With --training it prints "training", trains a small model without a pause until it reads a line, and then stops. Otherwise it creates: several streams, private
pools, blocks still in use by a stream, holes, a deleted pool, an emptied cache. Each checkpoint also has `segments`.
"""

import gc
import select
import sys

import torch
from checkpoint import begin, checkpoint, parser


def state(label: str, gpus: int) -> None:
    """Prints a checkpoint with the allocator state."""
    segments = torch.cuda.memory._snapshot()["segments"]
    kept = ("address", "size", "requested_size", "state")
    for segment in segments:
        segment["blocks"] = [{key: block[key] for key in kept} for block in segment["blocks"]]
        segment.pop("frames", None)
    checkpoint(label, range(gpus), segments=segments)


def pieces(sizes: tuple[int, ...], device: int) -> list[torch.Tensor | None]:
    """Allocates a tensor of bytes for each size."""
    return [torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}") for size in sizes]


def states(gpus: int) -> None:
    """Creates the states one after another."""
    plain = pieces((100, 5000, 700_000, 3 << 20, 30 << 20), 0)
    others = [pieces((1 << 10, 12 << 20), device) for device in range(1, gpus)]
    state("plain", gpus)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = pieces((2000, 900_000, 4 << 20, 25 << 20), 0)
    state("pool", gpus)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        streamed = pieces((3000, 2 << 20), 0)
    for piece in streamed:
        piece.record_stream(second)
    state("streams", gpus)
    streamed[1] = None
    state("pending", gpus)
    del pooled[1:3]
    gc.collect()
    state("holes in the pool", gpus)
    del plain[1:4], others
    state("holes", gpus)
    del pool, pooled
    gc.collect()
    state("pool gone", gpus)
    torch.cuda.empty_cache()
    state("emptied", gpus)


def train() -> None:
    """Trains without a pause until standard input has a line."""
    layer = torch.nn.TransformerEncoderLayer(128, nhead=2, dim_feedforward=256, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch, target = (torch.randn(4, 32, 128, device="cuda") for _ in range(2))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()

    for _ in range(20):
        step()
    print('{"label": "training"}', flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        step()
    sys.stdin.readline()
    state("stopped", 1)


def main() -> None:
    """Creates all states, or trains."""
    options = parser(__doc__)
    options.add_argument("--gpus", type=int, default=1)
    options.add_argument("--training", action="store_true")
    arguments = begin(options)
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    if arguments.training:
        train()
    else:
        states(arguments.gpus)


if __name__ == "__main__":
    main()
