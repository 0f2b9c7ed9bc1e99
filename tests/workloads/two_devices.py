"""One model on two devices in one process, one half on each, and how much each phase and module allocates per device.

The backward pass of the second half ends before that of the first half starts, although each device has its own thread.
With --control, hooks measure the allocations per device, as in stages_truth.py.
"""

from contextlib import ExitStack

import torch
from attribution import Meter, leave, rows
from checkpoint import begin, checkpoint, parser
from torch import nn

DEVICES = (0, 1)
WIDTH = 256
ROWS = 2048


class Half(nn.Sequential):
    """Layers on one device; the halves differ in size, to distinguish them."""

    def __init__(self, device: int) -> None:
        hidden = (2 + device) * WIDTH
        super().__init__(nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH))
        self.to(device)


class Pipeline(nn.Module):
    """Both halves, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Half(0)
        self.second = Half(1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values of the same shape, on the other device."""
        return self.second(self.first(values).to(1))


def main() -> None:
    """Trains, with a checkpoint after each step."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=3, metavar="N", help="how many steps (default 3)")
    options.add_argument("--control", action="store_true", help="with hooks that measure who allocates")
    arguments = begin(options, devices=len(DEVICES))
    for device in DEVICES:
        torch.zeros(1, device=device)
    meters = [Meter(device) for device in DEVICES] if arguments.control else []
    model = Pipeline()
    optimizer = torch.optim.AdamW(model.parameters())
    for meter in meters:
        meter.watch_model("Pipeline", model)
        meter.watch_optimizer(optimizer)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, WIDTH, device=0)).square().mean()
        with ExitStack() as passes:
            for meter in meters:
                passes.enter_context(meter.during_backward(loss))
            loss.backward()
        optimizer.step()
        checkpoint(f"step {step + 1}", DEVICES)
    for meter in meters:
        meter.total()
    checkpoint("trained", DEVICES, truths=[rows(meter) for meter in meters])
    if meters:
        leave()


if __name__ == "__main__":
    main()
