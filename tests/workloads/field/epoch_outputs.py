"""A trainer keeps the output of each step until the end of a very long epoch. (pytorch-lightning#4556)"""

import time
from collections import OrderedDict

import torch
from torch import nn


class Loop:
    def __init__(self, module):
        self.module, self.saved = module, OrderedDict()

    def run(self):
        while True:
            outputs = self.module.training_step(torch.randn(64, 1024, device="cuda"))
            outputs["loss"].backward()
            self.module.zero_grad()
            self.saved.setdefault("train", []).append({name: value.detach() for name, value in outputs.items()})
            time.sleep(0.1)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))

    def training_step(self, batch):
        output = self.net(batch)
        return {"loss": output.square().mean(), "output": output}


def main():
    loop = Loop(Module().cuda())
    loop.run()


main()
