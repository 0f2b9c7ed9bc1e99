"""A replay buffer of reinforcement learning: once it is full, each new step replaces the oldest."""

import time
from collections import deque

import torch
from torch import nn

policy, buffer = nn.Linear(4096, 64).cuda(), deque(maxlen=1500)
while True:
    with torch.no_grad():
        state = torch.randn(16, 4096, device="cuda")
        buffer.append((state, policy(state)))
    time.sleep(0.1)
