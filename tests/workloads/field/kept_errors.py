"""A bad batch is logged with its exception, whose traceback keeps the frame's tensors and their graphs."""

import time

import torch
from torch import nn

ERRORS = []


def step(net, batch):
    hidden = net(batch)
    if hidden.shape[0] == 64:
        raise ValueError("a label is missing")
    return hidden


net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
while True:
    try:
        step(net, torch.randn(64, 1024, device="cuda"))
    except ValueError as error:
        ERRORS.append(error)
    time.sleep(0.1)
