"""A meter sums a term of the loss that never goes through backward, so its graph grows with each step. (pytorch#1840)"""

import time

import torch
from torch import nn


class Meter:
    __slots__ = ("count", "total")

    def __init__(self):
        self.count, self.total = 0, 0.0

    def update(self, value):
        self.total = self.total + value
        self.count += 1


def fit():
    meters = {"rebuilt": Meter(), "sparse": Meter()}
    coder = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    while True:
        batch = torch.randn(128, 512, device="cuda")
        rebuilt, sparse = (coder(batch) - batch).square().mean(), coder(batch[:64]).abs().mean()
        rebuilt.backward()
        coder.zero_grad()
        meters["rebuilt"].update(rebuilt.item())
        meters["sparse"].update(sparse)
        time.sleep(0.1)


fit()
