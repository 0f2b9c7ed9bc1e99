"""Trains without a pause and counts its steps in the first eight bytes of FILE, so that another process can measure the time per step.

    counted_steps.py FILE [--pause MS]
"""

import mmap
import struct
import time
from pathlib import Path

import torch
from checkpoint import begin, checkpoint, parser


def main() -> None:
    """Trains until it is killed."""
    options = parser(__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--pause", type=float, default=0.0, metavar="MS", help="as if it waited for its GPU (default 0)")
    arguments = begin(options)
    torch.set_num_threads(1)
    arguments.file.write_bytes(bytes(8))
    layer = torch.nn.TransformerEncoderLayer(128, nhead=2, dim_feedforward=256, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch, target = (torch.randn(4, 32, 128, device="cuda") for _ in range(2))
    checkpoint("training")
    with arguments.file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as counter:
        steps = 0
        while True:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), target).backward()
            optimizer.step()
            time.sleep(arguments.pause / 1000)
            steps += 1
            struct.pack_into("<Q", counter, 0, steps)


if __name__ == "__main__":
    main()
