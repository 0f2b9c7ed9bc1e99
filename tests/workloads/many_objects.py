"""A process with N Python lists and only a few PyTorch objects.

    many_objects.py [--objects N]
"""

import gc

import torch
from checkpoint import begin, checkpoint, parser


def main() -> None:
    """Creates the objects and stops at the checkpoint."""
    options = parser(__doc__)
    options.add_argument("--objects", type=int, default=10_000_000, metavar="N", help="how many (default 10,000,000)")
    arguments = begin(options)
    gc.disable()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).to("cuda")
    held = torch.ones(1000, device="cuda")
    rows = [[number, [number]] for number in range(arguments.objects // 2)]
    checkpoint("held", rows=len(rows), parameters=sum(1 for _ in model.parameters()), elements=held.numel())


if __name__ == "__main__":
    main()
