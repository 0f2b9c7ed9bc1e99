"""A server with 4 GiB of caches that only a local variable keeps; it then allocates small tensors in short steps without a pause."""

import time

import torch


class Runner:
    def __init__(self):
        self.caches = [torch.empty(1 << 28, device="cuda") for _ in range(4)]

    def step(self):
        passing = torch.ones(1024, device="cuda")
        for _ in range(20):
            passing = passing * 2
        time.sleep(0.004)


def serve():
    runner = Runner()
    while True:
        runner.step()


serve()
