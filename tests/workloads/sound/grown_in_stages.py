"""A network is trained in stages: it gets another block every two minutes, up to four."""

import time

import torch
from torch import nn


def block():
    return nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()


net, begin = nn.ModuleList([block()]), time.time()
while True:
    if len(net) < min(4, 1 + (time.time() - begin) // 120):
        net.append(block())
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    batch = torch.randn(64, 1024, device="cuda")
    for part in net:
        batch = batch + part(batch)
    batch.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.2)
