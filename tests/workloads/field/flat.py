"""All parameters are views of one flat tensor, as with ZeRO; only the optimizer keeps their master copy."""

import time

import torch
from torch import nn


def flatten(layers):
    flat = torch.empty(len(layers) * 65_536, device="cuda", dtype=torch.bfloat16)
    for number, layer in enumerate(layers):
        layer.weight.data = flat[number * 65_536 : (number + 1) * 65_536].view(256, 256)
    master = nn.Parameter(flat.float())
    optimizer = torch.optim.AdamW([master])
    master.grad = torch.zeros_like(master)
    optimizer.step()
    master.grad = None
    return optimizer


layers = nn.ModuleList(nn.Linear(256, 256, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(100))
optimizer = flatten(layers)
while True:
    time.sleep(1)
