"""Makes and drops small tensors, as token generation does: at one rate after the other, for whoever has to know what tracing each of them costs.

    decode_loop.py 50 0     fifty a second, and then as fast as the processor lets it

At the beginning of each part it prints a line of JSON, {"label": "rate 50", ...}, and goes on to the next when it reads a line from standard input.
The first tensors of a part come right after its line. With --rest it has a checkpoint, at which it rests, at the end of each part.
"""

import json
import os
import select
import sys
import time

import torch
from checkpoint import begin, checkpoint, parser

# How many tensors are made between two looks at standard input, in a part without a rate.
BURST = 256


def has_order() -> bool:
    """Whether there is a line to be read, or standard input has ended."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)


def run(rate: int) -> None:
    """Makes so many tensors a second, or as many as it can, until there is an order."""
    while not has_order():
        if rate:
            torch.empty(1024, device="cuda")
            time.sleep(1 / rate)
        else:
            for _ in range(BURST):
                torch.empty(1024, device="cuda")
    sys.stdin.readline()


def main() -> None:
    """One part after the other."""
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
