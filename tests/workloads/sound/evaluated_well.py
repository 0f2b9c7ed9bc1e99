"""A training with occasional evaluations, which collect their outputs, read them, and free them."""

import time

import torch
from torch import nn

net = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
optimizer, step = torch.optim.Adam(net.parameters()), 0
while True:
    optimizer.zero_grad()
    net(torch.randn(128, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 100 == 0:
        outputs = []
        with torch.no_grad():
            for _ in range(60):
                outputs.append(net(torch.randn(256, 1024, device="cuda")))
                time.sleep(0.1)
        torch.cat(outputs).mean()
        del outputs
    time.sleep(0.1)
