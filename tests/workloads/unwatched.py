"""A user's training that runs out of memory while nobody watches it.

    unwatched.py UID graphs|survives

`graphs` keeps the losses of every step with their graphs, and dies of it. `survives` keeps a tensor of every step,
catches the error, drops what it kept and goes on.
"""

import select
import sys
import time

import torch
from checkpoint import begin, checkpoint, parser
from owned import become

GIB = 1 << 30
SECONDS_BETWEEN_STEPS = 1.2
# A twentieth of the simulated device, so that it is full after 24 seconds.
STEP_BYTES = 4 * GIB


class Meter:
    """Collects what a careless program does not need any more."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self.losses: list[torch.Tensor] = []


def steps(meter: Meter, keeps_graphs: bool) -> None:
    """Makes steps until memory runs out."""
    weight = torch.nn.Parameter(torch.ones(8, 1024, device="cuda"))
    while True:
        if keeps_graphs:
            grown = torch.empty(STEP_BYTES // 4096, 1, 1024, device="cuda").expand(-1, 1, -1) * weight[0]
            meter.losses.append(grown.sum())
            del grown
        else:
            meter.kept.append(torch.empty(STEP_BYTES, dtype=torch.uint8, device="cuda"))
        time.sleep(SECONDS_BETWEEN_STEPS)


def main() -> None:
    """Dies of it, or lives on until standard input ends."""
    options = parser(__doc__)
    options.add_argument("user", type=int)
    options.add_argument("what", choices=["graphs", "survives"])
    arguments = begin(options)
    meter = Meter()
    torch.ones(1, device="cuda")
    become(arguments.user)
    checkpoint("begun")
    try:
        steps(meter, arguments.what == "graphs")
    except torch.OutOfMemoryError:
        if arguments.what != "survives":
            raise
        meter.kept.clear()
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        meter.kept[:] = [torch.ones(1 << 20, device="cuda") for _ in range(40)]


if __name__ == "__main__":
    main()
