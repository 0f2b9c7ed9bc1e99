"""Keeps small blocks from two lines and large ones from a third; half of the second line's blocks are freed.

    small_blocks.py

Lines that a test refers to end in a comment with their name.
"""

import torch
from checkpoint import begin, checkpoint, parser

KIB = 1 << 10
SMALL = 40_000
MEDIUM = 800
LARGE = 10


def main() -> None:
    """Allocates the blocks, one line after another."""
    begin(parser(__doc__))
    first = torch.empty(KIB, dtype=torch.uint8, device="cuda")
    checkpoint("ready")
    small = [torch.empty(4 * KIB, dtype=torch.uint8, device="cuda") for _ in range(SMALL)]  # small
    medium = [torch.empty(256 * KIB, dtype=torch.uint8, device="cuda") for _ in range(MEDIUM)]  # medium
    large = [torch.empty(2048 * KIB, dtype=torch.uint8, device="cuda") for _ in range(LARGE)]  # large
    del medium[::2]
    checkpoint("kept")
    del first, small, medium, large


if __name__ == "__main__":
    main()
