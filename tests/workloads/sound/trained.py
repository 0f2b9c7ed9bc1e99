"""A textbook training loop: forward, backward, step."""

import time

import torch
from torch import nn

net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(net.parameters())
while True:
    optimizer.zero_grad()
    net(torch.randn(256, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    time.sleep(0.15)
