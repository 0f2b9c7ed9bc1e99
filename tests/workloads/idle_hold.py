"""Allocates memory and holds it, so that memwatch can attach late; then allocates more, and frees everything."""

import time

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20


def take(size_bytes: int, pieces: int) -> list[torch.Tensor]:
    """Allocates `size_bytes` as this many tensors of one size."""
    return [torch.empty(size_bytes // pieces, dtype=torch.uint8, device="cuda") for _ in range(pieces)]


def main() -> None:
    """Holds the memory for --seconds or, with --wait, until a line is read."""
    options = parser(__doc__)
    options.add_argument("--mib", type=int, default=512, metavar="N", help="how much to hold (default 512)")
    options.add_argument("--seconds", type=float, default=0.0, metavar="S", help="hold this long (default 0)")
    arguments = begin(options)
    size_bytes = arguments.mib * MIB
    held = take(size_bytes, 8)
    checkpoint("holding")
    time.sleep(arguments.seconds)
    held += take(size_bytes // 2, 4)
    checkpoint("more")
    del held[:8]
    torch.cuda.empty_cache()
    checkpoint("early part freed")
    held.clear()
    torch.cuda.empty_cache()
    checkpoint("end")


if __name__ == "__main__":
    main()
