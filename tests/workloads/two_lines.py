"""Allocates by two lines as fast as the processor lets it, three blocks by one for each block by the other, until it reads a line.

    two_lines.py

Lines that matter to a test end in a comment with their name.
"""

import sys

import torch
from checkpoint import begin, checkpoint, parser
from decode_loop import has_order

MIB = 1 << 20
# How many turns there are between two looks at standard input.
TURNS = 64


def turn() -> None:
    """Three blocks, and one."""
    for _ in range(3):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")  # three
    torch.empty(MIB, dtype=torch.uint8, device="cuda")  # one


def main() -> None:
    """One turn after the other."""
    begin(parser(__doc__))
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    checkpoint("ready")
    while not has_order():
        for _ in range(TURNS):
            turn()
    sys.stdin.readline()
    checkpoint("looped")
    del kept


if __name__ == "__main__":
    main()
