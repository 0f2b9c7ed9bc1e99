"""Puts the caching allocator into many states, and says at each what PyTorch's own books have: `torch.cuda.memory._snapshot()`.

    late_books.py [--gpus 2]

Several streams, private pools, blocks that a stream still uses, holes, a pool that has gone, an emptied cache. A checkpoint has
`segments` beside the usual.
"""

import gc

import torch
from checkpoint import begin, checkpoint, parser


def state(label: str, gpus: int) -> None:
    """A checkpoint with the allocator's books."""
    segments = torch.cuda.memory._snapshot()["segments"]
    kept = ("address", "size", "requested_size", "state")
    for segment in segments:
        segment["blocks"] = [{key: block[key] for key in kept} for block in segment["blocks"]]
        segment.pop("frames", None)
    checkpoint(label, range(gpus), segments=segments)


def pieces(sizes: tuple[int, ...], device: int) -> list[torch.Tensor | None]:
    """A tensor of bytes for each size."""
    return [torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}") for size in sizes]


def states(gpus: int) -> None:
    """One after the other."""
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


def main() -> None:
    """All states."""
    options = parser(__doc__)
    options.add_argument("--gpus", type=int, default=1)
    arguments = begin(options)
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    states(arguments.gpus)


if __name__ == "__main__":
    main()
