"""Texts are generated one after another: the keys and values of each grow token by token, and are freed with the text."""

import random
import time

import torch

while True:
    keys = []
    for _ in range(random.randrange(100, 400)):
        keys.append(torch.empty(2, 32, 1, 4096, device="cuda", dtype=torch.float16))
        time.sleep(0.08)
    del keys
