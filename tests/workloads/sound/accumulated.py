"""Gradients of eight small batches are accumulated before each step."""

import time

import torch
from torch import nn

net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)
while True:
    for _ in range(8):
        (net(torch.randn(64, 512, device="cuda")).square().mean() / 8).backward()
        time.sleep(0.1)
    optimizer.step()
    optimizer.zero_grad()
