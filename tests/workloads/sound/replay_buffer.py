"""A replay buffer of reinforcement learning: it fills to its bound, then the oldest step goes for each that comes."""

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
