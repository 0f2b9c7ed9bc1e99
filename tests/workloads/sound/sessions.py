"""A server with sessions, each of which keeps a state for 40 seconds on average."""

import random
import time

import torch

sessions = []
while True:
    now = time.time()
    sessions = [(end, state) for end, state in sessions if end > now]
    if random.random() < 0.5:
        sessions.append((now + random.expovariate(1 / 40), torch.empty(8 << 20, dtype=torch.uint8, device="cuda")))
    time.sleep(0.25)
