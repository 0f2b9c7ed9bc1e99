"""An unbounded queue: two batches are put in for each one taken out."""

import collections
import time

import torch

waiting = collections.deque()
while True:
    for _ in range(2):
        waiting.append(torch.empty(2 << 20, device="cuda"))
    waiting.popleft()
    time.sleep(0.2)
