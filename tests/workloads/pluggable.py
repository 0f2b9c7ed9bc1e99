"""Holds tensors that an allocator of its own has: the library LIBRARY, made of pluggable.c."""

import torch
from checkpoint import begin, checkpoint, parser


def main() -> None:
    """At the checkpoint it rests."""
    options = parser(__doc__)
    options.add_argument("built", metavar="LIBRARY")
    arguments = begin(options)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(arguments.built, "take", "give_back")
    torch.cuda.memory.change_current_allocator(allocator)
    held = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    checkpoint("holding", devices=(), count=len(held))


if __name__ == "__main__":
    main()
