"""Trains with a CUDA graph: captured once, with a private pool, then replayed; a second graph shares that pool.

Prints the bytes granted while graphs were captured; replays allocate nothing.
"""

import torch
from attribution import granted_bytes
from checkpoint import begin, checkpoint, parser
from torch import nn

WIDTH = 256
ROWS = 512


def main() -> None:
    """Captures a graph, replays it, captures another one, and frees everything."""
    begin(parser(__doc__))
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 16)).to("cuda")
    batch = torch.randn(ROWS, WIDTH, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            model(batch).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    checkpoint("warmed up")

    captured_bytes = -granted_bytes()
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        loss = model(batch).square().mean()
        loss.backward()
    captured_bytes += granted_bytes()
    checkpoint("captured")

    for _ in range(3):
        first.replay()
    checkpoint("replayed")

    captured_bytes -= granted_bytes()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=first.pool()):
        output = model(batch)
    captured_bytes += granted_bytes()
    eager = torch.randn(ROWS, WIDTH, device="cuda")
    second.replay()
    checkpoint("shared pool")

    del loss, output, eager
    model.zero_grad(set_to_none=True)
    first.reset()
    second.reset()
    checkpoint("reset")
    torch.cuda.empty_cache()
    checkpoint("trained", captured_bytes=captured_bytes)


if __name__ == "__main__":
    main()
