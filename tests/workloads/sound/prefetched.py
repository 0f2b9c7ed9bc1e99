"""A loader thread prepares four batches ahead, and waits while the queue is full."""

import queue
import threading
import time

import torch
from torch import nn

ready = queue.Queue(maxsize=4)


def load():
    while True:
        ready.put(torch.randn(256, 2048).pin_memory().cuda(non_blocking=True))


threading.Thread(target=load, daemon=True).start()
net = nn.Linear(2048, 2048).cuda()
while True:
    net(ready.get()).sum().backward()
    net.zero_grad()
    time.sleep(0.3)
