"""Trains a small transformer as fast as possible: the worst case for tracing each tensor. With --decode, a small model generates tokens with a
key-value cache instead, one token per step.

It reads commands from standard input, one per line, and answers each with a line of JSON:

        run N        runs N steps        {"step_ns": [...], "allocations_per_step": ...}
    history on   PyTorch records Python stacks of allocations and frees itself (torch.cuda.memory._record_memory_history)
        history off  stops recording     {"history": ...}

and exits at the end of standard input. The first line of output is {"label": "ready", "pid": ...}.
"""

import gc
import json
import os
import sys
import time

import torch

WIDTH = 128
LAYERS = 4
BATCH = 4
LENGTH = 32
WARM_STEPS = 20


class Trainer:
    """The model, its optimizer and one batch."""

    def __init__(self) -> None:
        layer = torch.nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=2 * WIDTH, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
        self.target = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")

    def step(self) -> None:
        """One forward and backward pass and one update of the weights."""
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(self.batch), self.target).backward()
        self.optimizer.step()


class Decoder:
    """A model that generates one token per step, with a cache of the last tokens."""

    def __init__(self) -> None:
        self.layers = [torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True, device="cuda") for _ in range(LAYERS)]
        self.head = torch.nn.Linear(WIDTH, WIDTH, device="cuda")
        self.caches = [torch.randn(1, LENGTH, WIDTH, device="cuda") for _ in range(LAYERS)]
        self.token = torch.randn(1, 1, WIDTH, device="cuda")

    @torch.no_grad()
    def step(self) -> None:
        """Generates one token from the cached ones; it replaces the oldest in the cache."""
        token = self.token
        for index, layer in enumerate(self.layers):
            self.caches[index] = torch.cat((self.caches[index][:, 1:], token), dim=1)
            token = token + layer(token, self.caches[index], self.caches[index], need_weights=False)[0]
        self.token = torch.nn.functional.layer_norm(self.head(token), (WIDTH,))


def events() -> int:
    """Returns the number of tensors allocated and freed so far."""
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + stats["allocation.all.freed"]


def run(trainer: Trainer | Decoder, steps: int) -> dict[str, object]:
    """Runs the steps and returns the duration of each."""
    gc.disable()
    before, times = events(), []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        trainer.step()
        times.append(time.perf_counter_ns() - begin)
    gc.enable()
    return {"step_ns": times, "events_per_step": (events() - before) / steps}


def history(on: bool) -> dict[str, object]:
    """Turns PyTorch's own record of allocations on or off."""
    if on:
        torch.cuda.memory._record_memory_history(context="all", stacks="python", max_entries=1_000_000)
    else:
        torch.cuda.memory._record_memory_history(None)
    return {"history": on}


def main() -> None:
    """Runs commands until standard input ends."""
    torch.set_num_threads(1)
    trainer = Decoder() if "--decode" in sys.argv[1:] else Trainer()
    run(trainer, WARM_STEPS)
    print(json.dumps({"label": "ready", "pid": os.getpid()}), flush=True)
    for order in sys.stdin:
        match order.split():
            case ["run", steps]:
                answer = run(trainer, int(steps))
            case ["history", state]:
                answer = history(state == "on")
            case _:
                sys.exit(f"busy_step.py: {order!r} is no order")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
