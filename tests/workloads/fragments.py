"""Frees every other piece of its segments, requests more than any free piece has, survives the refusal, and exits.

    fragments.py --pairs 60 --wanted-mib 512
"""

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20
PIECE_BYTES = 9 * MIB


def main() -> None:
    """Exits with 0 if the allocation without a large enough piece failed."""
    options = parser(__doc__)
    options.add_argument("--pairs", type=int, default=60)
    options.add_argument("--wanted-mib", type=int, default=512)
    arguments = begin(options)
    # Two pieces of this size share a segment of 20 MiB.
    pieces = [torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2 * arguments.pairs)]
    del pieces[::2]
    checkpoint("in pieces")
    try:
        torch.empty(arguments.wanted_mib * MIB, dtype=torch.uint8, device="cuda")  # refused
    except torch.OutOfMemoryError:
        checkpoint("refused")
    else:
        raise SystemExit("the device gave what it has no room for")


if __name__ == "__main__":
    main()
