"""Leaks of all kinds: in each step, each of the named retainers keeps one more unused tensor.

    keepers.py [NAME...]

Without names, all of KEEPERS are used. Runs until standard input has a line or ends, and then executes another program.
All but `graph` allocate on one line.
"""

import functools
import itertools
import os
import select
import sys
from collections.abc import Callable

import keepers_registry
import torch
from checkpoint import begin, checkpoint, parser

SECONDS_BETWEEN_STEPS = 0.2
KIB = 1 << 10


def made(number: int) -> torch.Tensor:
    """Allocates a tensor of 64 KiB."""
    return torch.full((64 * KIB // 4,), float(number), device="cuda")


class Trainer:
    """Collects the output of each step."""

    everything: list[torch.Tensor] = []

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []


trainer = Trainer()
by_step: dict[str, torch.Tensor] = {}
callbacks: list[Callable[[], torch.Tensor]] = []
errors: list[Exception] = []
model = torch.nn.Identity()


@functools.lru_cache(maxsize=None)
def cached(number: int) -> torch.Tensor:
    """Caches all results."""
    return made(number)


def callback(number: int) -> Callable[[], torch.Tensor]:
    """Returns a function that keeps a tensor."""
    batch = made(number)
    return lambda: batch


def fail(number: int) -> None:
    """Raises an error with a tensor in its frame."""
    logits = made(number)
    raise ValueError(tuple(logits.shape))


def hooked() -> None:
    """Registers a forward hook on the model that keeps each output."""
    seen: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output))


class Steps:
    """One method per retainer: what it does in a step."""

    def __init__(self) -> None:
        self.history: list[torch.Tensor] = []
        self.weight = torch.ones(64 * KIB // 4, device="cuda", requires_grad=True)
        self.total = torch.zeros((), device="cuda")

    def list(self, number: int) -> None:
        self.history.append(made(number))

    def dict(self, number: int) -> None:
        by_step[f"step {number}"] = made(number)

    def attribute(self, number: int) -> None:
        trainer.outputs.append(made(number))

    def closure(self, number: int) -> None:
        callbacks.append(callback(number))

    def graph(self, number: int) -> None:
        self.total = self.total + self.weight.exp().sum()

    def hook(self, number: int) -> None:
        model(made(number))

    def tensor_hook(self, number: int) -> None:
        self.weight.register_hook(functools.partial(torch.add, made(number)))

    def cache(self, number: int) -> None:
        cached(number)

    def exception(self, number: int) -> None:
        try:
            fail(number)
        except ValueError as error:
            errors.append(error)

    def class_attribute(self, number: int) -> None:
        Trainer.everything.append(made(number))

    def registry(self, number: int) -> None:
        keepers_registry.ENTRIES[f"entry {number}"] = made(number)


KEEPERS = ["list", "dict", "attribute", "closure", "graph", "hook", "tensor_hook", "cache", "exception"]
KEEPERS += ["class_attribute", "registry"]


def main() -> None:
    """Runs steps until a line is read."""
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", default=KEEPERS)
    arguments = begin(options)
    hooked()
    steps = Steps()
    history = steps.history
    for number in itertools.count():
        for name in arguments.names:
            getattr(steps, name)(number)
        if select.select([sys.stdin], [], [], SECONDS_BETWEEN_STEPS)[0]:
            sys.stdin.readline()
            break
    checkpoint("kept", steps=len(history))
    checkpoint("goes")
    os.execvp("sleep", ["sleep", "600"])


if __name__ == "__main__":
    main()
