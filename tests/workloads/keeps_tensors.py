"""Trains a small model, keeps an unused tensor of every step, and fills a cache that levels off.

    keeps_tensors.py --seconds 20

Lines that a test refers to end in a comment with their name.
"""

import time

import torch
from checkpoint import begin, checkpoint, parser

WIDTH = 256
SECONDS_BETWEEN_STEPS = 0.05
MIB = 1 << 20


class Trainer:
    """A model, its optimizer, and tensors that it leaks."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
        ).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.kept: list[torch.Tensor] = []
        self.cache: dict[int, torch.Tensor] = {}

    def step(self, part: float) -> None:
        """Runs one training step; `part` is the elapsed share of the time."""
        batch = torch.randn(64, WIDTH, device="cuda")
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))  # leak
        key = int(min(part, 0.3) * 100)
        if key not in self.cache:
            self.cache[key] = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")  # cache


def main() -> None:
    """Trains for the requested time."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=20)
    arguments = begin(options)
    trainer = Trainer()
    start = time.monotonic()
    while (part := (time.monotonic() - start) / arguments.seconds) < 1:
        trainer.step(part)
        time.sleep(SECONDS_BETWEEN_STEPS)
    checkpoint("trained")


if __name__ == "__main__":
    main()
