"""Leaves free memory in the pools of CUDA graphs, in a MemPool and on a separate stream, prints what PyTorch has in each, and empties the cache.

One of the graphs is deleted by then, so its pool has no owner.
"""

from collections import Counter

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20


def take(mib: int) -> torch.Tensor:
    """Allocates this many MiB on the device."""
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def captured(mib: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Captures a graph with twice this much memory, half of which is used only during a replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch = take(mib).fill_(1)
        kept = take(mib).copy_(scratch)
        del scratch
    return graph, kept


def pools() -> dict[str, list[int]]:
    """Returns the bytes reserved from the driver and the bytes in use, per private pool, or per stream outside such pools."""
    all_bytes: Counter[tuple[str, int]] = Counter()
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment["segment_pool_id"])
        key = f"pool {pool[0]}_{pool[1]}" if pool != (0, 0) else f"stream {segment['stream']}"
        all_bytes[key, 0] += segment["total_size"]
        all_bytes[key, 1] += segment["allocated_size"]
    return {key: [all_bytes[key, 0], all_bytes[key, 1]] for key, _ in all_bytes}


def main() -> None:
    """Prints the bytes that `empty_cache` released."""
    begin(parser(__doc__))
    held = [take(24), captured(64)]
    gone = captured(96)
    del gone
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        buffer = take(40)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first, second = take(32), take(48)
    del buffer, first
    checkpoint("in pools", pools=pools())
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    checkpoint("emptied", released=before - torch.cuda.memory_reserved(), held=len(held) + len(second))


if __name__ == "__main__":
    main()
