"""Grows by tensors of many sizes, frees some of them, empties the cache, and grows again."""

import random

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20
# From less than a page to more than PyTorch's segments for several blocks, on and off its rounding steps.
SIZES = (1, 512, 513, 70_000, MIB - 1, MIB, MIB + 1, 3 * MIB, 10 * MIB, 10 * MIB + 1, 20 * MIB, 33 * MIB, 77 * MIB + 5)


def grow(count: int, chance: random.Random) -> list[torch.Tensor]:
    """Allocates `count` tensors, of sizes drawn from SIZES."""
    return [torch.empty(chance.choice(SIZES), dtype=torch.uint8, device="cuda") for _ in range(count)]


def main() -> None:
    """Grows and shrinks in fixed steps: the same sizes in every run."""
    options = parser(__doc__)
    options.add_argument("--tensors", type=int, default=100, metavar="N", help="tensors per growth (default 100)")
    count = begin(options).tensors
    chance = random.Random(1)

    held = grow(count, chance)
    checkpoint("grown")
    del held[::2]
    checkpoint("some freed")
    torch.cuda.empty_cache()
    checkpoint("cache emptied")
    held += grow(count, chance)
    checkpoint("grown again")
    held.clear()
    checkpoint("all freed")
    torch.cuda.empty_cache()
    checkpoint("end")


if __name__ == "__main__":
    main()
