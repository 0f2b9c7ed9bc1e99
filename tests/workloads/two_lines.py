"""Allocates on two lines as fast as possible, three blocks on one for each block on the other, until it reads a line.

    two_lines.py

Lines that a test refers to end in a comment with their name.
"""

import sys

import torch
from checkpoint import begin, checkpoint, parser
from decode_loop import has_order

MIB = 1 << 20
# Number of turns between two polls of standard input.
TURNS = 64


def turn() -> None:
    """Allocates three blocks on one line, and one on the other."""
    for _ in range(3):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")  # three
    torch.empty(MIB, dtype=torch.uint8, device="cuda")  # one


def main() -> None:
    """Runs turns until standard input has a line."""
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
