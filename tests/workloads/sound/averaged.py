"""One moving average of the weights is kept."""

import copy
import time

import torch
from torch import nn

net = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
average, optimizer = copy.deepcopy(net).requires_grad_(False), torch.optim.AdamW(net.parameters())
while True:
    optimizer.zero_grad()
    net(torch.randn(128, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for mean, now in zip(average.parameters(), net.parameters()):
            mean.lerp_(now, 0.01)
    time.sleep(0.2)
