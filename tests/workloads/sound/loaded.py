"""A model of 6 GiB is loaded within two minutes, piece by piece, and then serves."""

import time

import torch

shards = []
for _ in range(60):
    shards.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
    time.sleep(2)
while True:
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda").zero_()
    time.sleep(0.2)
