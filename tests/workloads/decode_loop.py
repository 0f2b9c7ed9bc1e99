"""Allocates and frees small tensors at one rate after another, as token generation does, to measure the cost of tracing each allocation.

        decode_loop.py 50 0     fifty per second, then as fast as possible

At the start of each part it prints a line of JSON, {"label": "rate 50", ...}; it starts the next part when it reads a line from standard input.
The first tensors of a part are allocated right after its line. With --rest, a checkpoint follows each part.
"""

import json
import os
import select
import sys
import time

import torch
from checkpoint import begin, checkpoint, parser

# Number of tensors between two polls of standard input, in a part without a rate.
BURST = 256


def has_order() -> bool:
    """Returns whether standard input has a line or has ended."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)


def run(rate: int) -> None:
    """Allocates tensors at this rate, or as fast as possible, until standard input has a line."""
    while not has_order():
        if rate:
            torch.empty(1024, device="cuda")
            time.sleep(1 / rate)
        else:
            for _ in range(BURST):
                torch.empty(1024, device="cuda")
    sys.stdin.readline()


def main() -> None:
    """Runs the parts one after another."""
    options = parser(__doc__)
    options.add_argument("rates", type=int, nargs="+", metavar="RATE", help="tensors per second; 0: as many as it can")
    options.add_argument("--rest", action="store_true", help="rest at the end of each part")
    arguments = begin(options)
    torch.empty(1024, device="cuda")
    for rate in arguments.rates:
        print(json.dumps({"label": f"rate {rate}", "pid": os.getpid()}), flush=True)
        run(rate)
        if arguments.rest:
            checkpoint(f"rest after {rate}")


if __name__ == "__main__":
    main()
