"""Sentences of varying lengths, each padded to the longest of its batch."""

import random
import time

import torch
from torch import nn

net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.Adam(net.parameters())
while True:
    optimizer.zero_grad()
    net(torch.randn(16, random.randrange(32, 512), 512, device="cuda")).sum().backward()
    optimizer.step()
    time.sleep(0.2)
