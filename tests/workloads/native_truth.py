"""Holds tensors that were allocated on different stacks, and writes PyTorch's own record of those stacks.

    native_truth.py FILE

FILE gets what torch.cuda.memory._dump_snapshot() writes, recorded with stacks="all". The tensors come from modules, from a function that C
calls back, from an object that C builds, and from the backward pass, whose thread runs no Python.
"""

import functools
from collections.abc import Iterator

import torch
from checkpoint import begin, checkpoint, parser
from torch import nn

WIDTH = 96


class Holder:
    """Allocates a tensor in its constructor."""

    def __init__(self, rows: int) -> None:
        self.held = torch.ones(rows, WIDTH, device="cuda")


def one(rows: int) -> torch.Tensor:
    """Allocates a tensor with this number of rows."""
    return torch.zeros(rows, WIDTH, device="cuda")


def generated() -> Iterator[torch.Tensor]:
    """A generator of tensors: C calls it for the first one at another address than for the following ones."""
    for rows in range(3, 6):
        yield one(rows)


def main() -> None:
    """Allocates the tensors and writes PyTorch's record."""
    options = parser(__doc__)
    options.add_argument("file")
    arguments = begin(options)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(context="all", stacks="all")
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Sequential(nn.Linear(WIDTH, WIDTH))).to("cuda")
    held = [*map(one, [1, 2]), *generated(), functools.partial(one, 7)(), Holder(8), *map(Holder, [9])]
    held.extend(sorted([one(10), one(11)], key=lambda tensor: float(tensor.new_zeros(12).numel())))
    output = model(torch.randn(16, WIDTH, device="cuda"))
    output.square().sum().backward()
    torch.cuda.memory._dump_snapshot(arguments.file)
    checkpoint("held", tensors=len(held))


if __name__ == "__main__":
    main()
