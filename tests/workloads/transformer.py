"""Trains a small transformer with AdamW on random numbers.

The sequence length changes from step to step, and the cache is emptied now and then, so that the memory in use varies
as in a real job.
"""

import itertools
import time

import torch
from checkpoint import begin, checkpoint, parser

BATCH = 8
SEQUENCE_LENGTHS = (64, 128, 256, 128)
STEPS_PER_EPOCH = 16
SECONDS_BETWEEN_STEPS = 0.2


class Trainer:
    """A model, its optimizer and the data for one step."""

    def __init__(self, layers: int, width: int) -> None:
        layer = torch.nn.TransformerEncoderLayer(width, nhead=max(width // 64, 1), batch_first=True)
        self.width = width
        self.model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self, number: int) -> None:
        """One forward and backward pass and one update of the weights."""
        length = SEQUENCE_LENGTHS[number % len(SEQUENCE_LENGTHS)]
        batch = torch.randn(BATCH, length, self.width, device="cuda")
        target = torch.randn(BATCH, length, self.width, device="cuda")
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(batch), target).backward()
        self.optimizer.step()


def train_steps(trainer: Trainer, steps: int) -> None:
    """Trains for a number of steps, with a checkpoint after each."""
    for number in range(steps):
        trainer.step(number)
        checkpoint(f"step {number + 1}")


def train_seconds(trainer: Trainer, seconds: float) -> None:
    """Trains for this time, slowly enough to be watched, with a checkpoint after each epoch."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        if time.monotonic() >= end:
            return
        trainer.step(number)
        if number % STEPS_PER_EPOCH == STEPS_PER_EPOCH - 1:
            checkpoint(f"epoch {number // STEPS_PER_EPOCH + 1}")
            torch.cuda.empty_cache()
        time.sleep(min(SECONDS_BETWEEN_STEPS, max(end - time.monotonic(), 0)))


def main() -> None:
    """Trains, then frees everything."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=3, metavar="N", help="how many steps to train (default 3)")
    options.add_argument("--seconds", type=float, metavar="S", help="train this long instead, with short sleeps")
    options.add_argument("--layers", type=int, default=12, metavar="N", help="layers of the model (default 12)")
    options.add_argument("--dim", type=int, default=1024, metavar="N", help="width of the model (default 1024)")
    arguments = begin(options)
    trainer = Trainer(arguments.layers, arguments.dim)
    checkpoint("model")
    if arguments.seconds is None:
        train_steps(trainer, arguments.steps)
    else:
        train_seconds(trainer, arguments.seconds)
    del trainer
    checkpoint("freed")
    torch.cuda.empty_cache()
    checkpoint("end")


if __name__ == "__main__":
    main()
