"""Trains on command: reads a number of steps from standard input, runs them, and prints the duration of each.

Every step makes the same allocations, so that steps can be compared.
"""

import json
import sys
import time

import torch

BATCH = 8
LENGTH = 128
WIDTH = 512
LAYERS = 6


def main() -> None:
    """Prints one line of JSON per command: {"step_ns": [...]}."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, nhead=8, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> int:
        start = time.perf_counter_ns()
        batch = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter_ns() - start

    print(json.dumps({"ready": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"step_ns": [step() for _ in range(int(line))]}), flush=True)


if __name__ == "__main__":
    main()
