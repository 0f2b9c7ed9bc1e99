"""Allocates one by one what a PyTorch process holds beside its tensors: context, kernels, cuBLAS."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "workloads"))

import torch
from checkpoint import begin, checkpoint, parser


def main() -> None:
    """Prints a checkpoint after each part."""
    begin(parser(__doc__))
    held = torch.empty(1 << 20, dtype=torch.float32, device="cuda")
    checkpoint("first tensor")
    held.fill_(1.0)
    checkpoint("first kernel")
    square = held.view(1024, 1024)
    square @ square
    checkpoint("first matrix product")


if __name__ == "__main__":
    main()
