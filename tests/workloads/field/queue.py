"""A queue without a bound: two batches come for each one that goes."""

import collections
import time

import torch

waiting = collections.deque()
while True:
    for _ in range(2):
        waiting.append(torch.empty(2 << 20, device="cuda"))
    waiting.popleft()
    time.sleep(0.2)
