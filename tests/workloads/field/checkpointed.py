"""Losses of checkpointed blocks are kept in a list until the epoch ends. (pytorch#115255)"""

import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, batch):
        for block in self.blocks:
            batch = checkpoint(block, batch, use_reentrant=False)
        return batch


def epoch(net):
    terms = []
    while True:
        batch = torch.randn(64, 512, device="cuda", requires_grad=True)
        terms.append(net(batch).square().mean())
        time.sleep(0.15)


epoch(Stack().cuda())
