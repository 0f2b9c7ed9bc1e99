"""Holds tensors from a custom allocator: the library LIBRARY, built from pluggable.c."""

import torch
from checkpoint import begin, checkpoint, parser


def main() -> None:
    """Allocates the tensors and stops at the checkpoint."""
    options = parser(__doc__)
    options.add_argument("built", metavar="LIBRARY")
    arguments = begin(options)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(arguments.built, "take", "give_back")
    torch.cuda.memory.change_current_allocator(allocator)
    held = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    checkpoint("holding", devices=(), count=len(held))


if __name__ == "__main__":
    main()
