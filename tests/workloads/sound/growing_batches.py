"""The batch grows every minute until it is eight times as large."""

import time

import torch
from torch import nn

net = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
optimizer, begin = torch.optim.Adam(net.parameters()), time.time()
while True:
    rows = min(8, 1 + int((time.time() - begin) / 60)) * 512
    optimizer.zero_grad()
    net(torch.randn(rows, 2048, device="cuda")).sum().backward()
    optimizer.step()
    time.sleep(0.2)
